"""The processes of the audit as their parent sees them: a fork server, or a fresh interpreter."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_cudafork.imports.values import import_result
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import supervisor
from pytest_cudafork.observe.base.ledger import LedgerReader
from pytest_cudafork.observe.base.ledger_folder import make_ledger, remove_ledger
from pytest_cudafork.observe.base.undo import only_here
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.process import exit_status, hang_stacks, launch, signals
from pytest_cudafork.process.descendants import leftovers, process_state
from pytest_cudafork.process.protocol import frames, messages, server_messages, sockets
from pytest_cudafork.process.protocol.server_messages import Limits, ServerSettings
from pytest_cudafork.process.server_process import ServerProcess
from pytest_cudafork.process.shared_mailbox import SharedMailbox, mailbox_file, read_mailbox
from pytest_cudafork.process.unattended_jobs import forget_start, last_text
from pytest_cudafork.settings import environment

_BEGIN_SECONDS = 60.0
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_PAUSE = 0.01
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH")
_PREPARATION = "pytest_cudafork.imports.worker.job:prepare"
_IMPORT = "pytest_cudafork.imports.worker.job:run"
_STATUS_BYTES = 64
NO_PROCESS = "a process for the audit cannot be started"
_NOT_TAKEN = "its result was not taken: this process has no file descriptor left"

Message = dict[str, Any]


class WatchedProcess:
    """What both kinds have in common: the ledger that they write, and whether they can watch."""

    def __init__(self) -> None:
        self.error = ""
        """Why it cannot watch, if it cannot."""
        self.limits: list[str] = []
        self.pid = 0
        """Which process watches; 0 before it has said so."""
        self._touches: dict[int, list[Touch]] = defaultdict(list)
        self._things = contextlib.ExitStack()
        ledger = make_ledger("imports-")
        self._things.callback(only_here(lambda: remove_ledger(ledger.path)))
        self._ledger = ledger.path
        self._reader: LedgerReader = ledger.reader()
        self._things.callback(self._reader.close)

    def touches_of(self, pid: int) -> list[Touch]:
        """Return the touches of a process that has ended."""
        for record in self._reader.new():
            if record["k"] == "touch":
                self._touches[int(record["pid"])].append(Touch.from_record(record))
        return self._touches.pop(pid, [])

    def _take_ready(self, ready: server_messages.Ready) -> None:
        """Note whether it can watch."""
        self.error = "" if ready.why_not is None else str(ready.why_not["text"])
        self.limits = ready.about.get("limits", [])
        self.pid = ready.about.get("pid", 0)


class AuditProcess(WatchedProcess):
    """A fork server that imports modules, with the ledger that it and its children write."""

    def __init__(self, settings: AuditSettings) -> None:
        super().__init__()
        self.started: dict[str, int] = {}
        """The imports that run, or have run when it was lost, with their processes (0: unknown)."""
        self.refusal = ""
        """Why it can start no import, if it cannot; it ends then."""
        self.is_gone = False
        """Whether it has ended, or is about to."""
        try:
            self._server = ServerProcess(
                ServerSettings(
                    prepare=_PREPARATION,
                    data={"settings": settings.to_plain(), "ledger": self._ledger},
                    ignore_signals=True,
                    limits=Limits(settings.jobs, settings.longest_limit, settings.memory),
                    argv=("pytest-cudafork-imports",),
                ),
                env=unwatched(os.environ),
                new_session=True,  # a module must not stop while it waits for a terminal
                quiet=True,
            )
        except BaseException:
            self._things.close()
            raise

    def say(self, message: Message) -> None:
        """Tell it which modules to "import", "drop" or "preload"."""
        for names in server_messages.in_packets(message.get("import", [])):
            self._server.tell(server_messages.QueueJobs(_IMPORT, names))
        for names in server_messages.in_packets(message.get("drop", [])):
            self._server.tell(server_messages.DropJobs(names))
        for names in server_messages.in_packets(message.get("preload", [])):
            self._server.tell(server_messages.Preload(names))

    def read(self, seconds: float) -> Message | None:
        """Return its next message; None when it is gone, or nothing has come for so long."""
        try:
            found = self._server.next_message(seconds)
        except EOFError:
            self.is_gone = True
            return None
        if found is None:
            return None
        message, fds = found
        try:
            return self._plain(message, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _plain(self, message: messages.Message, fds: list[int]) -> Message:
        """Note what a message says, and return it as the auditor wants it."""
        match message:
            case server_messages.Ready():
                self._take_ready(message)
            case server_messages.JobBegins():
                self.started[message.name] = 0
            case server_messages.JobStarted():
                self.started[message.name] = message.pid
            case server_messages.JobsRefused():
                self.refusal = message.text
            case server_messages.Lost():
                return {"lost": message.names, "status": message.exitcode}
            case server_messages.JobEnded():
                self.started.pop(message.name, None)
                # the kernel gives no descriptor where this process has none left
                told = import_result.decode(read_mailbox(fds[0])) if fds else None
                output = message.output if fds else _NOT_TAKEN
                return {
                    "module": message.name,
                    "pid": message.pid,
                    "status": message.exitcode,
                    "timed_out": message.timed_out,
                    "over_memory": message.over_memory,
                    "told": None if told is None else told._asdict(),
                    "output": output,
                    "stacks": message.stacks,
                }
        return {}

    def how_it_ended(self) -> str:
        """Say how it ended, with what it wrote last; it is killed if it has not."""
        how = exit_status.describe(self._server.exitcode(_END_SECONDS))
        last = self._server.log.rpartition("\n")[2]
        return f"{how} ({last})" if last else how

    def kill(self) -> None:
        """End it at once; what it has started dies with it."""
        self._server.kill()

    def close(self) -> None:
        """End it, with all that descends from it."""
        self._server.close()
        self._server.reap()
        self._things.close()


class FreshImport(WatchedProcess):
    """The import of one module in a fresh interpreter, which ``supervisor.py`` starts."""

    def __init__(self, settings: AuditSettings, module: str, endless: Iterable[str] = ()) -> None:
        super().__init__()
        self._module = module
        try:
            self._begin(settings, list(endless))
        except BaseException:
            self._things.close()
            raise

    def _begin(self, settings: AuditSettings, endless: list[str]) -> None:
        self._log = self._keep(os.memfd_create("pytest-cudafork-log", os.MFD_CLOEXEC))
        self._stacks = self._keep(os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC))
        self._mailbox = self._keep(mailbox_file())
        self._status, write = os.pipe2(os.O_CLOEXEC)
        self._hang_up = self._things.enter_context(contextlib.ExitStack())
        self._hang_up.callback(os.close, self._status)
        self._control, theirs = sockets.pair(socket.SOCK_SEQPACKET)
        self._things.enter_context(self._control)
        self._cookie = frames.new_cookie()
        request = {
            "cookie": self._cookie,
            "settings": settings.to_plain(),
            "ledger": self._ledger,
            "module": self._module,
            "endless": endless,
        }
        try:
            with theirs, launch.request_file(request) as request_fd:
                fds = (theirs.fileno(), request_fd, self._stacks, self._mailbox)
                self._process = self._exec(fds, write)
        finally:
            os.close(write)

    def _keep(self, fd: int) -> int:
        self._things.callback(os.close, fd)
        return fd

    def _exec(self, fds: tuple[int, ...], status: int) -> subprocess.Popen[bytes]:
        numbers = ",".join(str(int(each)) for each in signals.SIGNALS)
        between = [sys.executable, "-I", "-S", supervisor.__file__, str(status), numbers]
        return subprocess.Popen(
            [*between, *launch.interpreter_command("pytest_cudafork.imports.worker.job:main", fds)],
            pass_fds=(*fds, status),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=unwatched(os.environ),
            start_new_session=True,  # a module must not stop while it waits for a terminal
        )

    def answer(self, timeout: float) -> Message:
        """Wait for its end; return what it left, or how it ended."""
        ended = self._begun()
        deadline = time.monotonic() + timeout  # its start does not count
        status = self._ended(deadline) if ended is None else ended
        timed_out = status is None and time.monotonic() >= deadline
        if timed_out and self.pid and hang_stacks.ask(self.pid):
            self._ended(time.monotonic() + _END_SECONDS)
        with contextlib.closing(SharedMailbox(self._mailbox)) as mailbox:
            told = import_result.decode(mailbox.read())
        return {
            "module": self._module,
            "pid": self.pid,
            "status": -signal.SIGKILL if status is None else status,
            "timed_out": timed_out,
            "over_memory": False,
            "told": None if told is None else told._asdict(),
            "output": last_text(self._log),
            "stacks": last_text(self._stacks),
        }

    def _begun(self) -> int | None:
        """Wait until it has said something; return its exit status if it has ended by then."""
        began = time.monotonic()
        ended = None
        while not (self.pid or self.error) and time.monotonic() - began < _BEGIN_SECONDS:
            ended = self._wait(_LOOK_SECONDS)
            if ended is None and not launch.has_ended(self._process, _PAUSE):
                continue
            ended = self._wait(0.0) if ended is None else ended  # or written in between
            if not (self.pid or self.error):
                last = last_text(self._log).rpartition("\n")[2]
                self.error = f"{NO_PROCESS}: {last or 'its interpreter ended at once'}"
            break
        return ended

    def _ended(self, deadline: float) -> int | None:
        """Wait for its exit status; None at the deadline, or if the supervisor was killed."""
        while time.monotonic() < deadline:
            forget_start(self._log)
            left = max(0.0, deadline - time.monotonic())
            status = self._wait(min(_LOOK_SECONDS, left))
            if status is not None:
                return status
            process_state.wake(self._process.pid)  # the module may have stopped it
            if launch.has_ended(self._process):
                return self._wait(0.0)  # it may have been written in between
        return None

    def _wait(self, seconds: float) -> int | None:
        """Wait for its exit status, and take note of what it says before; None if none came."""
        poller = select.poll()
        poller.register(self._status, select.POLLIN)
        if not (self.pid or self.error):
            poller.register(self._control, select.POLLIN)
        ready = dict(poller.poll(seconds * 1000))
        if self._control.fileno() in ready:
            data = self._control.recv(server_messages.LONGEST_PACKET)
            message = messages.decode_or_none(frames.only(data, self._cookie))
            if isinstance(message, server_messages.Ready):
                self._take_ready(message)
        if ready.get(self._status, 0) & select.POLLIN:
            text = os.read(self._status, _STATUS_BYTES)
            return int(text) if text else None
        return None

    def close(self) -> None:
        """End it, with all that descends from it."""
        # Before the interpreter has said something, nobody but the supervisor knows of it.
        self._hang_up.close()
        if not launch.has_ended(self._process, 0.0 if self.pid else _END_SECONDS):
            self._process.kill()
            launch.wait_for_program(self._process)
        leftovers.end({self._cookie: self.pid or self._process.pid})
        self._things.close()


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
