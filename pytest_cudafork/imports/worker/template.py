"""Owns the template: a clean process that forks one child for each module to import.

It was started by exec, and grows only by what is proven: a child imports a module that many others
need; if it is clean afterwards it takes the template's place, and what was the template sleeps
until it ends. So a template is never unclean. Runs in that process, and does not know what the
verdicts will be.

The connection to the parent carries lines of JSON. From the parent: ``{"import": names}``,
``{"preload": names}``, and ``{"drop": names}`` of what need not be imported after all. To it:
``{"watch": ...}`` once; for each module ``{"started": ...}`` and a line with what is known of it
(see ``Job.finish``); ``{"preloaded": name}`` as a sign of life; and ``{"lost": names}`` when a
process that had taken the template's place has died: what has no answer yet must be asked again.
Its end is the template's end.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from pytest_cudafork.check.watch import Watch
from pytest_cudafork.imports.values.import_result import ImportResult, encode
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import importer, preload
from pytest_cudafork.imports.worker.ignored_signals import Deafness
from pytest_cudafork.imports.worker.interpreter_state import LoadedModules
from pytest_cudafork.imports.worker.job import Job, leave_orphaned
from pytest_cudafork.imports.worker.threads import WaitBudget
from pytest_cudafork.observe.observer import Observer, WatchSettings
from pytest_cudafork.observe.witnesses import WitnessError
from pytest_cudafork.process import child, leftovers, template_memory
from pytest_cudafork.process.shared_mailbox import Slate

_POLL_MS = 200
_READ_BYTES = 1 << 16
_MOST_TRIES = 12
"""How often one list of modules is tried; each time one of them turns out to be no good."""
_DEAR_SECONDS = 0.3
"""What takes longer is not imported again because of another module that is no good."""
_FOLD_FROM = 60
"""So many modules must wait for folding the memory to pay off; it takes a third of a second."""


class Template:
    """The loop of one template process, and of those that take its place."""

    def __init__(self, sock: socket.socket, settings: AuditSettings, observer: Observer) -> None:
        self._sock = sock
        self._settings = settings
        self._observer = observer
        self._waiting: list[str] = []
        self._preloads: list[str] = []
        self._running: list[Job] = []
        self._repeated = preload.RepeatedImports()
        self._budget = WaitBudget(settings)
        self._sweeper = leftovers.Sweeper()
        self._deafness = Deafness()
        self._received = b""
        self._loaded: LoadedModules | None = None

    def serve(self) -> None:
        """Work until the parent closes the connection."""
        self._deafness.begin()
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        while True:
            self._start_jobs()
            fds = [job.pidfd for job in self._running]
            for fd in fds:
                poller.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(_POLL_MS if fds else None)}
            for fd in fds:
                poller.unregister(fd)
            if self._sock.fileno() in ready and not self._receive():
                break
            self._look_after(ready)
        for job in self._running:
            job.kill()
            job.finish(self._sweeper)
        self._sweeper.sweep(now=True)

    # -- the connection --------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Take what the parent wants; False when it is gone."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            wish = json.loads(line)
            self._waiting += wish.get("import", ())
            dropped = set(wish.get("drop", ()))
            self._waiting = [name for name in self._waiting if name not in dropped]
            self._preloads += wish.get("preload", ())
        return bool(data)

    def _say(self, message: dict[str, Any]) -> None:
        say(self._sock, message)

    # -- jobs ------------------------------------------------------------------------------------

    def _start_jobs(self) -> None:
        """Import what many modules need first; then run as many jobs as may run."""
        if self._preloads and not self._running:
            self._preload()
            self._loaded = LoadedModules()
            if len(self._waiting) >= _FOLD_FROM:
                memory = template_memory.Collapse()
                while not memory.done:
                    memory.step()
        while self._waiting and not self._preloads and len(self._running) < self._settings.jobs:
            self._start(self._waiting.pop(0))

    def _start(self, module: str) -> None:
        private = [self._sock.fileno(), *(job.pidfd for job in self._running)]
        job = Job(module, self._settings.limit_of(module))
        with template_memory.frozen():
            job.start(private, self._import)
        self._running.append(job)
        self._say({"started": module, "pid": job.pid, "cookie": job.cookie.hex()})

    def _import(self, job: Job) -> NoReturn:
        self._deafness.end()
        imports = importer.Importer(self._observer, self._loaded, self._budget)
        job.report(imports.run(job.module))

    def _look_after(self, ready: set[int]) -> None:
        now = time.monotonic()
        for job in list(self._running):
            job.forget_output()
            if job.pidfd in ready:
                self._running.remove(job)
                self._finish(job)
            elif now > job.deadline:
                job.timed_out = True
                job.end()
            elif self._settings.memory and _uses(job.pid) > self._settings.memory:
                job.over_memory = True
                job.end()

    def _finish(self, job: Job) -> None:
        answer = job.finish(self._sweeper)
        self._sweeper.sweep()
        self._say(answer)
        told = None if answer["told"] is None else ImportResult(**answer["told"])
        is_clean = told is not None and told.is_clean
        if not is_clean:
            self._repeated.refuse(job.module)
        if told is not None and told.state == "clean":
            self._budget.spend(told.waited, told.left_running)
        if told is not None and self._waiting:
            loaded = told.loaded if is_clean else preload.others(told.loaded, job.module)
            self._repeated.add([name for name in loaded if name != job.module], told.seconds)
            self._preloads += self._repeated.next()

    # -- growing ---------------------------------------------------------------------------------

    def _preload(self) -> None:
        """Let a child import modules, and take this process's place if it is clean after that."""
        wanted, self._preloads = self._preloads, []
        for _ in range(_MOST_TRIES):
            wanted = self._repeated.worth_trying(wanted)
            if not wanted:
                return
            start = time.monotonic()
            good = self._try(wanted)
            if good is None:  # this is the child, and the template from now on
                return
            for name in wanted[len(good) : len(good) + 1]:
                self._repeated.refuse(name)
            rest = wanted[len(good) + 1 :]
            if not good or time.monotonic() - start < _DEAR_SECONDS:
                wanted = good + rest
            elif self._try(good) is None:
                wanted = rest  # this is the child: it need not import the good ones once more
            else:
                return

    def _try(self, names: list[str]) -> list[str] | None:
        """Import modules in a child; return the first ones that are good, or None in the child.

        The child goes on as the template if all are good; then this process sleeps until it ends.
        """
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        with template_memory.frozen():
            pid = os.fork()
        if pid == 0:
            os.close(ours)
            self._import_all(names, theirs, parent)
            return None
        os.close(theirs)
        good = self._count_good(ours, len(names), pid)
        os.close(ours)
        if good < len(names):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if good == len(names):
            if status == 0:  # the parent is gone, and so is all work
                os._exit(0)
            self._waiting.clear()
            self._say({"lost": names, "status": os.waitstatus_to_exitcode(status)})
            good = 0
        return names[:good]

    def _count_good(self, fd: int, most: int, pid: int) -> int:
        """Count the bytes that come, until the child ends, takes too long, or nobody asks more."""
        pidfd = os.pidfd_open(pid)
        poller = select.poll()
        for each in (fd, pidfd):
            poller.register(each, select.POLLIN)
        poller.register(self._sock, 0)  # that the other end is closed is told in any case
        count = 0
        while count < most:
            ready = [each for each, _ in poller.poll(self._settings.longest_limit * 1000)]
            if fd not in ready or self._sock.fileno() in ready:
                break
            data = os.read(fd, most - count)
            if not data:
                break
            count += len(data)
        os.close(pidfd)
        return count

    def _import_all(self, names: list[str], done: int, parent: int) -> None:
        """Import modules in a new process, a byte for each; returns if all are good."""
        leave, good = os._exit, False
        try:
            with contextlib.suppress(OSError):  # some kill their process group
                os.setpgid(0, 0)
            child.die_with_parent()
            leave_orphaned(parent)
            self._deafness.end()
            sock = os.fstat(self._sock.fileno())
            for name in names:
                told = importer.Importer(self._observer).run(name, last=False)
                if not told.is_clean or not _is_same(sock, self._sock.fileno()):
                    break
                os.write(done, b"1")
                self._say({"preloaded": name})
            else:
                good = True
        finally:
            if not good:
                leave(child.EXIT_LOST)
        self._deafness.begin()
        os.close(done)


def _is_same(status: os.stat_result, fd: int) -> bool:
    """Whether a descriptor is still what it was."""
    try:
        now = os.fstat(fd)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _uses(pid: int) -> int:
    """Return how many bytes a process holds beyond what this one does."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            held = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
    return max(0, held - template_memory.resident_bytes())


def say(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send one line; a parent that is gone hears nothing."""
    with contextlib.suppress(OSError):
        sock.sendall(json.dumps(message).encode("ascii") + b"\n")


def main(control_fd: int, request_fd: int, stacks_fd: int, slate_fd: int) -> NoReturn:
    """Run as the template, or import one module as a fresh interpreter would, and end.

    Args:
        control_fd: The connection to the parent.
        request_fd: The memory file with what is wanted.
        stacks_fd: Where stacks are written on a fatal signal.
        slate_fd: Where a fresh interpreter leaves what it has to tell.

    """
    for fd in (control_fd, request_fd, stacks_fd, slate_fd):
        os.set_inheritable(fd, False)
    gc.disable()  # a collection while modules are imported takes a third of the time
    child.prepare(stacks_fd)
    child.adopt_streams()
    sock = socket.socket(fileno=control_fd)
    request = child.read_request(request_fd)
    leftovers.wear(request["cookie"])
    sys.argv[:] = ["pytest-cudafork-imports"]
    settings = AuditSettings.from_plain(request["settings"])
    watch = Watch(
        WatchSettings(ledger=request["ledger"], device=settings.device, level="poison"),
        owner=str(os.getpid()),
    )
    try:
        watch.begin()
        _hide(settings.without)
    except (WitnessError, ValueError, RuntimeError) as error:
        say(sock, {"watch": {"error": str(error)}})
        os._exit(0)
    observer = watch.observer
    limits = list(observer.witnesses.limits) if observer.witnesses is not None else []
    say(sock, {"watch": {"limits": limits, "pid": os.getpid()}})
    module = request["module"]
    if module:
        leave, slate = os._exit, Slate(slate_fd)
        budget = WaitBudget(settings, request["endless"])
        slate.write(encode(importer.Importer(observer, None, budget).run(module)))
        leave(0)
    os.close(slate_fd)
    Template(sock, settings, observer).serve()
    os._exit(0)


def _hide(libraries: str) -> None:
    """Make libraries look not installed.

    Raises:
        ValueError: One of them is no module name.
        RuntimeError: One of them is in use here.

    """
    if libraries:
        from pytest_cudafork.imports.worker import hiding

        hiding.hide(libraries.split("+"))
