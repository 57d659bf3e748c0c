"""The audit's jobs: what happens in the processes that import modules.

Most modules are imported in children of a fork server, whose preparation begins to watch for CUDA.
A verdict that has to be confirmed comes from a fresh interpreter. Both write what they have to tell
to a mailbox, because a module may close every descriptor or write to it.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_cudafork.check.watch import Watch
from pytest_cudafork.imports.values import import_result
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import importer, preload
from pytest_cudafork.imports.worker.interpreter_state import LoadedModules
from pytest_cudafork.imports.worker.threads import WaitBudget
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.observe.witnesses import WitnessError
from pytest_cudafork.process import child, fork_server
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.protocol import frames, server_messages
from pytest_cudafork.process.protocol.server_messages import CannotFork
from pytest_cudafork.process.shared_mailbox import SharedMailbox

if TYPE_CHECKING:
    from pytest_cudafork.imports.worker.files_read import FilesRead


class ImportJobs(fork_server.Prepared):
    """What the imports of one fork server have in common, and which modules it gets by and by."""

    def __init__(self, observer: Observer, settings: AuditSettings) -> None:
        self.observer = observer
        self.budget = WaitBudget(settings)
        self._settings = settings
        self.loaded: LoadedModules | None = None
        self._repeated = preload.RepeatedImports()
        self._files = _files(settings)

    def importer(self) -> importer.Importer:
        """Return what imports one module in a child."""
        return importer.Importer(
            self.observer,
            self.loaded,
            self.budget,
            traces=self._settings.traces,
            files=self._files,
        )

    def limit_of(self, name: str) -> float:
        """Return how long the import of a module may take."""
        return self._settings.limit_of(name)

    def preload(self, name: str) -> bool:
        """Import a module; False if this process would not be clean after that."""
        before = importer.Importer(self.observer, traces=self._settings.traces)
        return self._is_clean(name, before.run(name, last=False))

    def _is_clean(self, name: str, result: import_result.ImportResult) -> bool:
        """Whether others may find what an import has left.

        What a module has set in the environment, others find only if they import it, too.
        """
        if self._settings.is_in_each_import(name):
            result = result._replace(decides=False)
        return result.is_clean

    def grown(self) -> None:
        """Look what is loaded now, so that no child has to."""
        self.loaded = LoadedModules()

    def worth_trying(self, names: list[str]) -> list[str]:
        """Return those that are not there yet and were not refused."""
        return self._repeated.worth_trying(names)

    def refuse(self, name: str) -> None:
        """Take note that a module touches CUDA, fails, or leaves threads."""
        self._repeated.refuse(name)

    def wants_preloaded(self, name: str, left: bytes, exitcode: int, waiting: int) -> list[str]:
        """Learn from an import that has ended; return what many of them load."""
        result = import_result.decode(left)
        if result is None:
            self.refuse(name)
            return []
        is_clean = self._is_clean(name, result)
        if not is_clean:
            self.refuse(name)
        if result.state == "clean":
            self.budget.spend(result.waited, result.left_running)
        if not waiting:
            return []
        loaded = result.loaded if is_clean else preload.others(result.loaded, name)
        self._repeated.add([each for each in loaded if each != name], result.seconds)
        return self._repeated.next()


def prepare(server: fork_server.ForkServer) -> NoReturn:
    """Begin to watch, and serve; the preparation of the audit's fork server."""
    leave = os._exit
    child.adopt_streams()
    data = server.settings.data
    settings = AuditSettings.from_plain(data["settings"])
    try:
        observer, about = _begin_watch(settings, data["ledger"])
    except (WitnessError, ValueError, RuntimeError) as error:
        server.ready(CannotFork("", "watch", str(error)))
    else:
        server.serve(ImportJobs(observer, settings), **about)
    leave(0)  # what the modules have registered for the end is not called: they are many


def run(task: child.Task) -> int:
    """Import one module and leave what is to be told; the entry point of an unattended job."""
    jobs: ImportJobs = task.prepared
    mailbox = task.mailbox
    assert mailbox is not None, "nobody attends to an import"
    result = jobs.importer().run(task.data)
    mailbox.write(import_result.encode(result))
    return 0


def main(control_fd: int, request_fd: int, stacks_fd: int, mailbox_fd: int) -> NoReturn:
    """Import one module in this interpreter, which was started for it, and end.

    Args:
        control_fd: The connection to the parent, which is told whether this can watch.
        request_fd: The memory file with what is wanted.
        stacks_fd: Where stacks are written on a fatal signal.
        mailbox_fd: Where to leave what is to be told.

    """
    leave = os._exit
    for fd in (control_fd, request_fd, stacks_fd, mailbox_fd):
        os.set_inheritable(fd, False)
    gc.disable()  # a collection while modules are imported takes a third of the time
    child.prepare(stacks_fd)
    child.adopt_streams()
    request = child.read_request(request_fd)
    cookie = request["cookie"]
    leftovers.mark_process(cookie)
    sys.argv[:] = ["pytest-cudafork-imports"]
    settings = AuditSettings.from_plain(request["settings"])
    with socket.socket(fileno=control_fd) as control:  # the import has no use for it

        def ready(why_not: CannotFork | None = None, **about: Any) -> None:
            reason = None if why_not is None else why_not._asdict()
            message = server_messages.Ready(reason, 0, about)
            control.send(frames.encode(message.to_plain(), cookie))

        try:
            observer, about = _begin_watch(settings, request["ledger"])
        except (WitnessError, ValueError, RuntimeError) as error:
            ready(CannotFork("", "watch", str(error)))
            leave(0)
        ready(**about)
    mailbox = SharedMailbox(mailbox_fd)
    budget = WaitBudget(settings, request["endless"])
    importing = importer.Importer(
        observer, None, budget, traces=settings.traces, files=_files(settings)
    )
    result = importing.run(request["module"])
    mailbox.write(import_result.encode(result))
    leave(0)


def _files(settings: AuditSettings) -> FilesRead | None:
    if not settings.files:
        return None
    from pytest_cudafork.imports.worker.files_read import FilesRead

    return FilesRead().begin()


def _begin_watch(settings: AuditSettings, ledger: str) -> tuple[Observer, dict[str, Any]]:
    """Watch this process for CUDA; return who does, and what the parent has to know.

    Raises:
        WitnessError: The device that was asked for is not to be had.
        ValueError: A library that is to be hidden has no module's name.
        RuntimeError: Such a library is in use here.

    """
    watch = Watch(
        WatchSettings(ledger=ledger, device=settings.device, level="poison"),
        owner=str(os.getpid()),
    )
    watch.begin()
    if settings.without:
        from pytest_cudafork.imports.worker import hiding

        hiding.hide(settings.without.split("+"))
    observer = watch.observer
    limits = list(observer.witnesses.limits) if observer.witnesses is not None else []
    return observer, {"limits": limits, "pid": os.getpid()}
