"""Jobs that a fork server runs and watches by itself, several at a time, and what it imports first.

A job writes its result to a mailbox, memory that it shares with the server: code that closes all
descriptors or writes to them all cannot damage it. It has a time limit and a limit on memory.

A server grows only by what is proven: a child imports what many jobs need; if the preparation finds
it in order afterwards, it takes the server's place, and what was the server sleeps until it ends.
Used in the server only.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import fork  # where the fork guard puts itself in its place
from typing import TYPE_CHECKING, NoReturn

from pytest_cudafork.compat.unpatched import contextlib, io, os, select, signal, time
from pytest_cudafork.process import child, hang_stacks
from pytest_cudafork.process.channel import EXIT_LOST
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.forking import fault_watchdog, freeze_before_fork
from pytest_cudafork.process.protocol import frames, server_messages
from pytest_cudafork.process.protocol.server_messages import Limits
from pytest_cudafork.process.shared_mailbox import SharedMailbox

if TYPE_CHECKING:
    from pytest_cudafork.process.fork_server import ForkServer

_MOST_OUTPUT = 2000
_BLOCK_BYTES = 512
_MOST_KEPT = 64 << 20
"""What a job may write before the start of it is forgotten; one of them writes for ever."""
_LONGEST_WAIT_MS = (1 << 31) - 1
"""What one wait may take: poll counts milliseconds in a C int, and a limit may be larger."""
_DYING_SECONDS = 5.0
_MOST_TRIES = 12
"""How often one list of modules is tried; each time one of them turns out to be no good."""
_DEAR_SECONDS = 0.3
"""What takes longer is not imported again because of another module that is no good."""
_FOLD_FROM = 60
"""So many jobs must wait for folding the memory to pay off; it takes a third of a second."""


class UnattendedJob:
    """One job, in a process of its own."""

    def __init__(self, entry: str, name: str, seconds: float) -> None:
        self.entry = entry
        self.name = name
        self.deadline = time.monotonic() + (seconds or float("inf"))
        self.timed_out = False
        self.over_memory = False
        self.pid = 0
        self.pidfd = -1
        self.cookie = frames.new_cookie()
        self._asked = 0.0
        with contextlib.ExitStack() as things:
            self._mailbox = SharedMailbox()
            things.callback(self._mailbox.close)
            self._output = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)
            things.callback(os.close, self._output)
            self._stacks = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)
            things.callback(os.close, self._stacks)
            self._things = things.pop_all()

    def start(self, server: ForkServer) -> None:
        """Fork its process from the server.

        Raises:
            OSError: There is no process, memory or descriptor left for it.

        """
        try:
            self.pid, self.pidfd = server.fork(lambda: self._run(server))
        except BaseException:
            self._things.close()
            raise

    def _run(self, server: ForkServer) -> NoReturn:
        leave = os._exit
        try:
            child.prepare(self._stacks)
            leftovers.mark_process(self.cookie)
            os.dup2(self._output, 1)
            os.dup2(self._output, 2)
            entry = child.look_up(self.entry)
            task = child.Task(
                self.name, self._stacks, mailbox=self._mailbox, prepared=server.prepared
            )
            leave(entry(task))
        finally:
            leave(EXIT_LOST)

    def forget_output(self) -> None:
        """Keep the output from filling the memory."""
        forget_start(self._output)

    def end(self) -> None:
        """Make the child write its stacks and die; called again, kill it if it does not."""
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            if hang_stacks.ask(self.pid):
                return
            self.kill()
        elif now - self._asked > _DYING_SECONDS:
            self.kill()

    def kill(self) -> None:
        """End the child now."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def finish(self) -> tuple[server_messages.JobEnded, bytes]:
        """Reap the dead child and its process group; return what is known, and what it left."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        left = self._mailbox.read()
        answer = server_messages.JobEnded(
            name=self.name,
            pid=self.pid,
            exitcode=os.waitstatus_to_exitcode(status),
            timed_out=self.timed_out,
            over_memory=self.over_memory,
            output=last_text(self._output),
            stacks=last_text(self._stacks),
        )
        self._things.close()
        os.close(self.pidfd)
        return answer, left


class UnattendedJobs:
    """The jobs of one server: those that wait, those that run, and what is to be imported first."""

    def __init__(self, server: ForkServer, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._waiting: list[tuple[str, str]] = []
        self._running: dict[int, UnattendedJob] = {}
        self._preloads: list[str] = []
        self._sweeper = leftovers.Sweeper()

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    def pidfds(self) -> list[int]:
        """Return the descriptors of those that run."""
        return list(self._running)

    def add(self, entry: str, names: Iterable[str]) -> None:
        """Queue jobs."""
        self._waiting += [(entry, name) for name in names]

    def drop(self, names: Iterable[str]) -> None:
        """Forget jobs that have not begun."""
        dropped = set(names)
        self._waiting = [one for one in self._waiting if one[1] not in dropped]

    def preload(self, names: Iterable[str]) -> None:
        """Have modules imported before the next job."""
        self._preloads += names

    def begin_some(self, *, may_grow: bool) -> None:
        """Import what many jobs need first; then run as many jobs as may run.

        Raises:
            OSError: There is no process, memory or descriptor left for any; the parent knows.

        """
        try:
            self._begin_some(may_grow)
        except OSError as error:
            self._server.send(server_messages.JobsRefused(str(error)))
            raise

    def _begin_some(self, may_grow: bool) -> None:
        if self._preloads and not self._running and may_grow:
            self._grow()
            self._server.prepared.grown()
            if len(self._waiting) >= _FOLD_FROM:
                memory = freeze_before_fork.Collapse()
                while not memory.done:
                    memory.step()
        grows_next = self._preloads and may_grow
        while self._waiting and not grows_next and self.running < self._limits.at_once:
            try:
                self._start(*self._waiting[0])
            except OSError:
                if not self._running:
                    raise
                return  # when one of those has ended there may be room for it
            self._waiting.pop(0)

    def _start(self, entry: str, name: str) -> None:
        seconds = self._server.prepared.limit_of(name)
        job = UnattendedJob(entry, name, self._limits.seconds if seconds is None else seconds)
        self._server.send(server_messages.JobBegins(name, job.cookie))
        job.start(self._server)
        self._running[job.pidfd] = job
        self._server.send(server_messages.JobStarted(name, job.pid, job.cookie))

    def look_after(self, ended: set[int]) -> None:
        """End what takes too much, and tell of the jobs whose pidfds say that they have ended."""
        now = time.monotonic()
        for pidfd, job in list(self._running.items()):
            job.forget_output()
            if pidfd in ended:
                self._finish(self._running.pop(pidfd))
            elif now > job.deadline:
                job.timed_out = True
                job.end()
            elif self._limits.memory and (
                freeze_before_fork.bytes_beyond_ours(job.pid) > self._limits.memory
            ):
                job.over_memory = True
                job.end()

    def _finish(self, job: UnattendedJob) -> None:
        self._server.poller.unregister(job.pidfd)
        answer, left = job.finish()
        self._sweeper.add(job.cookie, job.pid)
        with contextlib.suppress(OSError):  # no descriptor is left to look: the next one does
            self._sweeper.sweep()
        file = os.memfd_create("pytest-cudafork-left", os.MFD_CLOEXEC)
        try:
            with io.open(file, "wb", closefd=False) as stream:
                stream.write(left)
            self._server.send(answer, (file,))
        finally:
            os.close(file)
        self._preloads += self._server.prepared.wants_preloaded(
            job.name, left, answer.exitcode, len(self._waiting)
        )

    def end(self) -> None:
        """Kill what runs."""
        for job in self._running.values():
            job.kill()
            job.finish()
            self._sweeper.add(job.cookie, job.pid)
        self._running.clear()
        self._sweeper.sweep(now=True)

    # -- growing ---------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Let a child import modules, and take this process's place if it is clean after that."""
        wanted, self._preloads = self._preloads, []
        prepared = self._server.prepared
        for _ in range(_MOST_TRIES):
            wanted = prepared.worth_trying(wanted)
            if not wanted:
                return
            start = time.monotonic()
            good = self._try(wanted)
            if good is None:  # this is the child, and the server from now on
                return
            for name in wanted[len(good) : len(good) + 1]:
                prepared.refuse(name)
            rest = wanted[len(good) + 1 :]
            if not good or time.monotonic() - start < _DEAR_SECONDS:
                wanted = good + rest
            elif self._try(good) is None:
                wanted = rest  # this is the child: it need not import the good ones once more
            else:
                return

    def _try(self, names: list[str]) -> list[str] | None:
        """Import modules in a child; return the first ones that are good, or None in the child.

        The child goes on as the server if all are good; then this process sleeps until it ends.
        """
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        pid = fault_watchdog.fork_without(fork)
        if pid == 0:
            freeze_before_fork.freeze_in_child()
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
            self._server.send(server_messages.Lost(names, os.waitstatus_to_exitcode(status)))
            good = 0
        return names[:good]

    def _count_good(self, fd: int, most: int, pid: int) -> int:
        """Count the bytes that come, until the child ends, takes too long, or nobody asks more."""
        control = self._server.connection.fileno()
        pidfd = os.pidfd_open(pid)
        poller = select.poll()
        for each in (fd, pidfd):
            poller.register(each, select.POLLIN)
        poller.register(control, select.POLLRDHUP)  # the parent says nothing more, or is gone
        seconds = self._limits.seconds
        limit = min(seconds * 1000, _LONGEST_WAIT_MS) if seconds else None
        count = 0
        while count < most:
            ready = [each for each, _ in poller.poll(limit)]
            if fd not in ready or control in ready:
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
        server = self._server
        try:
            with contextlib.suppress(OSError):  # some kill their process group
                os.setpgid(0, 0)
            child.die_with_parent()
            if os.getppid() != parent:
                leave(EXIT_LOST)
            server.signals.end()
            sock = os.fstat(server.connection.fileno())
            for name in names:
                in_order = server.prepared.preload(name)
                if not in_order or not _is_same(sock, server.connection.fileno()):
                    break
                os.write(done, b"1")
                server.send(server_messages.Preloaded(name))
            else:
                good = True
        finally:
            if not good:
                leave(EXIT_LOST)
        if server.settings.ignore_signals:
            server.signals.begin()
        os.close(done)
        server.take_place()


def _is_same(status: os.stat_result, fd: int) -> bool:
    """Whether a descriptor is still what it was."""
    try:
        now = os.fstat(fd)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def last_text(fd: int) -> str:
    """Return the end of what is in a memory file; not what it begins with, where that is gone."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, _MOST_OUTPUT, max(0, size - _MOST_OUTPUT))
    return data.lstrip(b"\0").decode("utf-8", "replace").strip()


def forget_start(fd: int) -> None:
    """Give back a memory file's memory if it takes too much.

    Who writes to it goes on where it was, so that the file begins with a hole.
    """
    if os.fstat(fd).st_blocks * _BLOCK_BYTES > _MOST_KEPT:
        os.ftruncate(fd, 0)
