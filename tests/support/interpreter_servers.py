"""The servers of interpreters of a test process: started when they are needed, one of each kind."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.interpreter_environment import TAKEN_OVER, VARIANTS, read_at_start, setting
from tests.support.interpreter_programs import (
    Program,
    hides_imported,
    mentions_torch,
    torch_can_be_imported,
)

_WORTH_A_SERVER = 2
_MOST_SERVERS = 6
_START_SECONDS = 120.0
_ANSWER_SECONDS = 120.0
_LONGEST_REQUEST = 100_000
_ROOM = 16_000  # bytes; for what the environment of a child may have more
_PR_SET_CHILD_SUBREAPER = 36
_SCRIPT = Path(__file__).with_name("interpreter_server.py")


class Server:
    """One server process; it ends with this process, or when it is closed."""

    def __init__(self, environ: Mapping[str, str], put_away: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(theirs.fileno()), *put_away],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environ, "ROOM": "x" * _ROOM},
            )
        self._control.settimeout(_START_SECONDS)
        self._wait_until_ready = True
        self.adopted: set[int] = set()
        """Processes of others that lost their parent at a wrong moment and got this one instead."""

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Return the process id of a new child of this process that does what is requested.

        Raises:
            OSError: The server is gone, or cannot do it.

        """
        if self._wait_until_ready:
            self._expect(b"ready")
            self._control.settimeout(_ANSWER_SECONDS)
            self._wait_until_ready = False
        before, pid = _children(), 0
        _become_subreaper(True)
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
            pid = int(self._expect(b"pid "))
            return pid
        finally:
            _become_subreaper(False)
            self.adopted |= _children() - before - {pid}

    def reap_adopted(self) -> None:
        """Let go of those that have ended; nobody else would."""
        for pid in list(self.adopted):
            try:
                reaped, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # somebody has waited for any child
                reaped = pid
            if reaped:
                self.adopted.discard(pid)

    def close(self) -> None:
        """End the process."""
        self.reap_adopted()
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _expect(self, word: bytes) -> bytes:
        answer = self._control.recv(_LONGEST_REQUEST)
        if not answer.startswith(word):
            raise OSError(f"the server of interpreters: {answer.decode() or 'is gone'}")
        return answer.removeprefix(word)


def _become_subreaper(yes: bool) -> None:
    """Become the parent of descendants that lose theirs, or no longer.

    Only for the moment in which a server hands over its child: what a test leaves behind shall go
    to where it goes always.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def _children() -> set[int]:
    """Return the children of this process, of all its threads."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(
            OSError
        ):  # a thread that has ended, or a kernel that tells nothing
            found.update(map(int, (task / "children").read_text().split()))
    return found


class Servers:
    """The servers of this process, by what they have imported and their variant of environment."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._environ = dict(os.environ)
        self._servers: dict[tuple[str, ...], Server] = {}
        self._asked: dict[tuple[str, ...], int] = {}
        self._deaths = 0

    def fork(self, program: Program, request: dict[str, Any], fds: Sequence[int]) -> int | None:
        """Return the process id of a new child; None if it must be a fresh interpreter."""
        environ = request["environ"]
        if os.getpid() != self._owner or not self._same_start(environ):
            return None
        if len(json.dumps(request)) > _LONGEST_REQUEST or hides_imported(program, request):
            return None
        with_torch = torch_can_be_imported() and mentions_torch(program, request["cwd"])
        variant = [
            f"{name}={setting(environ, name)}"
            for name in VARIANTS
            if setting(environ, name) != setting(self._environ, name)
        ]
        key = ("torch" if with_torch else "", *variant)
        for _ in range(2):
            server = self._server(key)
            if server is None:
                return None
            try:
                return server.fork(request, fds)
            except OSError:
                self._deaths += 1
                self._servers.pop(key).close()
        return None

    def reap_adopted(self) -> None:
        """Let go of processes of others that have become children of this one and have ended."""
        if os.getpid() == self._owner:
            for server in self._servers.values():
                server.reap_adopted()

    def running(self) -> list[Server]:
        """Return the servers that were started and are not known to have died."""
        return list(self._servers.values())

    def close(self) -> None:
        """End the servers."""
        if os.getpid() == self._owner:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def _server(self, key: tuple[str, ...]) -> Server | None:
        if key not in self._servers:
            self._asked[key] = self._asked.get(key, 0) + 1
            full = len(self._servers) >= _MOST_SERVERS or self._deaths > 10
            is_variant = len(key) > 1
            if full or (is_variant and self._asked[key] < _WORTH_A_SERVER):
                return None
            environ = {k: v for k, v in self._environ.items() if k not in TAKEN_OVER}
            environ |= dict(one.split("=", 1) for one in key[1:])
            self._servers[key] = Server(environ, ["numpy", "torch"] if key[0] else [])
        return self._servers[key]

    def _same_start(self, environ: Mapping[str, str]) -> bool:
        return read_at_start(environ) == read_at_start(self._environ)


@functools.cache
def servers() -> Servers:
    """Return the servers of this process; they start when they are needed."""
    return Servers()
