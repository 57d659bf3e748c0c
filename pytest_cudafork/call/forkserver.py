"""Owns the parent's handle of the fork server for calls: start, ask, close. Runs in the parent.

What the server does is in ``call_server.py``; what its children do is not known here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from typing import Any

import pytest

from pytest_cudafork.compat import standard_library
from pytest_cudafork.errors import ChildError
from pytest_cudafork.process import child, exit_status, launch, wire

_START_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
_LONGEST_REPLY = 4096


class ForkServer:
    """One fork server, started on first use and again if it died or this process was forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Any = None
        self._control: socket.socket | None = None
        self._log_fd = -1
        self._owner = 0
        self._cookie = ""

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        return None if self._process is None else int(self._process.pid)

    def start_child(self, request: dict[str, Any]) -> launch.Running:
        """Fork a child from the server and let it run a request in this process's surroundings.

        Raises:
            ChildError: The server cannot be started, or refuses.

        """
        self._forget_if_forked()
        child.flush_streams()
        request = {**request, "umask": launch.umask(), "environ": dict(os.environb)}
        with contextlib.ExitStack() as stack:
            pair = stack.enter_context(launch.ends())
            request["cookie"] = pair.cookie
            request_fd = stack.enter_context(launch.request_file(request))
            cwd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fds = [pair.theirs.fileno(), request_fd, pair.stacks_fd, cwd, 1, 2]
                with self._lock:
                    reply = self._fork(fds)
            finally:
                os.close(cwd)
            word, _, number = reply.partition(" ")
            if word != "pid":
                raise ChildError(f"the fork server could not start a child: {number or reply}")
            pid = int(number)
            return pair.running(pid, lambda: self._reap(pid))

    def close(self) -> None:
        """End the server and its children; it starts again if it is asked again."""
        self._forget_if_forked()
        with self._lock:
            self._close()

    def _fork(self, fds: list[int]) -> str:
        """Ask for a child, of a new server if the old one is gone."""
        self._start()
        try:
            return self._ask("fork", fds)
        except (ConnectionError, EOFError):
            self._close()
        self._start()
        try:
            return self._ask("fork", fds)
        except (ConnectionError, EOFError) as error:
            raise ChildError(f"the fork server died twice while it was asked: {error}") from error

    def _reap(self, pid: int) -> int:
        """Return the exit code of a dead child; killed, if the server took it with itself."""
        with self._lock:
            if self._control is None:
                return -signal.SIGKILL
            try:
                word, _, number = self._ask(f"reap {pid}").partition(" ")
            except (OSError, EOFError):
                self._close()
                return -signal.SIGKILL
        return int(number) if word == "exit" else -signal.SIGKILL

    def _ask(self, text: str, fds: list[int] | None = None) -> str:
        assert self._control is not None, "the server is started before it is asked"
        try:
            socket.send_fds(self._control, [f"{self._cookie} {text}".encode()], fds or [])
            reply = self._control.recv(_LONGEST_REPLY)
        except BaseException:
            # A late answer (an alarm came, the time was up) must not answer the next request.
            self._close()
            raise
        if not reply:
            raise EOFError("the fork server closed the connection")
        return reply.decode()

    def _start(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._close()
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_fd = os.memfd_create("pytest-cudafork-server", os.MFD_CLOEXEC)
        self._control = ours
        self._owner = os.getpid()
        code = (
            f"import sys; sys.path[:] = {launch.path_texts()!a}; "
            "from pytest_cudafork.call.call_server import main; main()"
        )
        self._cookie = wire.new_cookie().hex()
        arguments = [str(theirs.fileno()), str(self._owner), self._cookie]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *standard_library.interpreter_flags(), "-c", code, *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log_fd,
                stderr=self._log_fd,
            )
        finally:
            theirs.close()
        ours.settimeout(_START_SECONDS)
        hello = b""
        with contextlib.suppress(OSError):  # told below, with what the server wrote
            hello = ours.recv(_LONGEST_REPLY)
        if hello != b"ready":
            log = os.pread(self._log_fd, 1 << 16, 0).decode("utf-8", "replace")
            process = self._process
            self._close()
            raise ChildError(
                f"the fork server did not start: it {exit_status.describe(process.returncode)}. It "
                f"wrote: {log or '(nothing)'}"
            )
        ours.settimeout(_ANSWER_SECONDS)

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            import subprocess

            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._log_fd >= 0:
            os.close(self._log_fd)
        self._process, self._control, self._log_fd = None, None, -1

    def _forget_if_forked(self) -> None:
        """Drop the handles if the server belongs to the process that this one was forked from."""
        if self._owner in (0, os.getpid()):
            return
        if self._control is not None:
            self._control.close()
        if self._log_fd >= 0:
            os.close(self._log_fd)
        if self._process is not None:
            self._process.returncode = 0  # not our child: Popen must neither wait nor warn
        self._process, self._control, self._log_fd = None, None, -1
        self._owner = 0
        self._lock = threading.Lock()  # a thread that was not forked may hold the old one


def server_of(config: pytest.Config) -> ForkServer:
    """Return the session's fork server; it is not started by this, and closed at unconfigure."""
    server = config.stash.get(SERVER_KEY, None)
    if server is None:
        server = ForkServer()
        config.stash[SERVER_KEY] = server
        config.add_cleanup(server.close)
    return server


SERVER_KEY = pytest.StashKey[ForkServer]()
