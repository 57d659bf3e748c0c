"""Owns the processes of the audit as their parent sees them: a template, or a fresh interpreter.

It does not know which modules there are, nor what a verdict is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.imports.values import import_result
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import supervisor
from pytest_cudafork.imports.worker.job import forget_start, last_text
from pytest_cudafork.observe.base.ledger import Ledger, LedgerReader
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.process import exit_status, hang_stacks, launch, leftovers
from pytest_cudafork.process.shared_mailbox import Slate, slate_file
from pytest_cudafork.process.wire import new_cookie
from pytest_cudafork.settings import environment

_READ_BYTES = 1 << 20
_BEGIN_SECONDS = 60.0
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH")

Message = dict[str, Any]


class AuditProcess:
    """A template, or a fresh interpreter for one module, with the ledger that it writes."""

    def __init__(
        self, settings: AuditSettings, module: str = "", endless: Iterable[str] = ()
    ) -> None:
        self.error = ""
        """Why it cannot watch, if it cannot."""
        self.limits: list[str] = []
        self.pid = 0
        """Which process watches; 0 before it has said so."""
        self.started: dict[str, int] = {}
        """The imports that run, or have run when it was lost, with their processes."""
        self.is_gone = False
        """Whether it has ended, or is about to."""
        self._received = b""
        self._touches: dict[int, list[Touch]] = defaultdict(list)
        self._cookies: dict[bytes, int] = {}
        self._things = contextlib.ExitStack()
        try:
            self._begin(settings, module, list(endless))
        except BaseException:
            self._things.close()
            raise

    def _begin(self, settings: AuditSettings, module: str, endless: list[str]) -> None:
        folder = tempfile.mkdtemp(prefix="pytest-cudafork-imports-")
        self._things.callback(shutil.rmtree, folder, ignore_errors=True)
        ledger = Ledger(os.path.join(folder, "ledger.jsonl"))
        ledger.create()
        self._reader: LedgerReader = ledger.reader()
        self._things.callback(self._reader.close)
        self._log = self._keep(os.memfd_create("pytest-cudafork-log", os.MFD_CLOEXEC))
        self._stacks = self._keep(os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC))
        self._slate_fd = self._keep(slate_file())
        self._sock, theirs = socket.socketpair()
        self._things.enter_context(self._sock)
        cookie = new_cookie()
        request = {
            "cookie": cookie,
            "settings": settings.to_plain(),
            "ledger": ledger.path,
            "module": module,
            "endless": endless,
        }
        with theirs, launch.request_file(request) as request_fd:
            fds = (theirs.fileno(), request_fd, self._stacks, self._slate_fd)
            self._process = self._exec(fds, alone=bool(module))
        self._cookies[cookie] = self._process.pid

    def _keep(self, fd: int) -> int:
        self._things.callback(os.close, fd)
        return fd

    def _exec(self, fds: tuple[int, ...], *, alone: bool) -> subprocess.Popen[bytes]:
        code = (
            f"import gc, sys; gc.disable(); sys.path[:] = {launch.path_texts()!a}; "
            f"from pytest_cudafork.imports.worker.template import main; main{fds}"
        )
        between = [sys.executable, "-I", "-S", supervisor.__file__, str(fds[0])] if alone else []
        return subprocess.Popen(
            [*between, sys.executable, *standard_library.interpreter_flags(), "-c", code],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=unwatched(os.environ),
            start_new_session=True,  # a module must not stop while it waits for a terminal
        )

    # -- the connection --------------------------------------------------------------------------

    def say(self, message: Message) -> None:
        """Tell it something; one that is gone is noticed when it is listened to."""
        with contextlib.suppress(OSError):
            self._sock.sendall(json.dumps(message).encode("ascii") + b"\n")

    def read(self, seconds: float) -> Message | None:
        """Return its next message; None when it is gone, or nothing has come for so long."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            try:
                data = self._sock.recv(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                self.is_gone = True
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: Message = json.loads(line)
        self._take_note(message)
        return message

    def _take_note(self, message: Message) -> None:
        watch = message.get("watch")
        if watch is not None:
            self.error = watch.get("error", "")
            self.limits = watch.get("limits", [])
            self.pid = watch.get("pid", 0)
        elif "started" in message:
            self.started[message["started"]] = message["pid"]
            self._cookies[bytes.fromhex(message["cookie"])] = message["pid"]
        elif "module" in message:
            self.started.pop(message["module"], None)

    def touches_of(self, pid: int) -> list[Touch]:
        """Return the touches of a process that has ended."""
        for record in self._reader.new():
            if record["k"] == "touch":
                self._touches[int(record["pid"])].append(Touch.from_record(record))
        return self._touches.pop(pid, [])

    # -- a fresh interpreter ---------------------------------------------------------------------

    def answer_of(self, module: str, timeout: float) -> Message:
        """Wait for the end of a fresh interpreter; what it left, or how it ended."""
        began = time.monotonic()
        while not (self.pid or self.error or self.is_gone) and _passed(began) < _BEGIN_SECONDS:
            self.read(_LOOK_SECONDS)
        deadline = time.monotonic() + timeout  # its start does not count
        status = self._ended(deadline)
        timed_out = status is None and time.monotonic() >= deadline
        if timed_out and self.pid and hang_stacks.ask(self.pid):
            self._ended(time.monotonic() + _END_SECONDS)
        with contextlib.closing(Slate(self._slate_fd)) as slate:
            told = import_result.decode(slate.read())
        return {
            "module": module,
            "pid": self.pid,
            "status": -signal.SIGKILL if status is None else status,
            "timed_out": timed_out,
            "over_memory": False,
            "told": None if told is None else told._asdict(),
            "output": last_text(self._log),
            "stacks": last_text(self._stacks),
        }

    def _ended(self, deadline: float) -> int | None:
        """Wait for its exit status; None at the deadline, or if the warden was killed."""
        while time.monotonic() < deadline:
            forget_start(self._log)
            message = self.read(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            if message is None and self._process.poll() is not None:
                return None
            if message is not None and "status" in message:
                return int(message["status"])
        return None

    # -- the end ---------------------------------------------------------------------------------

    def how_it_ended(self) -> str:
        """Say how it ended, with what it wrote last; it is killed if it has not."""
        how = exit_status.describe(self._exit_status())
        last = last_text(self._log).rpartition("\n")[2]
        return f"{how} ({last})" if last else how

    def _exit_status(self) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_SECONDS)
        self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """End it at once; what it has started dies with it."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """End it, with all that descends from it."""
        self._sock.close()
        self._exit_status()
        leftovers.end(self._cookies)
        self._things.close()


def _passed(since: float) -> float:
    return time.monotonic() - since


def unwatched(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a watched session hands on: the audit has its own."""
    env = {key: value for key, value in environ.items() if not key.startswith(environment.PREFIX)}
    for name in _PATHS:
        folders = env.get(name, "").split(os.pathsep)
        kept = [folder for folder in folders if not folder.startswith(_OWN_FOLDER)]
        if kept != folders:
            env.pop(name)
            if any(kept):
                env[name] = os.pathsep.join(kept)
    return env
