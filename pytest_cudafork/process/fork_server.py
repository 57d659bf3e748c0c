"""The fork server: a clean process, started by exec, that forks a child for each job.

This is the server's side; the parent's is ``fork_server_client.py``, and what they say to each
other is in ``protocol/server_messages.py``. There are two kinds of children. One that is *attended*
is handed to the parent, which tells it its job, takes its messages and watches it. A job that is
*unattended* is run and watched by the server itself, which tells the parent how it ended
(``unattended_jobs.py``).

What has to happen before the first fork (a collection of tests, a watch for CUDA) is done by a
function that the parent names: it is called with the ``ForkServer`` and calls ``serve``. So nothing
here knows what the jobs are.

The server runs in a process that others may fork from it and that user code may have got at: all
that it sends and takes bears a cookie, and it reaps nobody but its children.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from os import fork  # where the fork guard puts itself in its place
from typing import Any, NoReturn

from pytest_cudafork.compat.unpatched import contextlib, gc, os, select, signal, time
from pytest_cudafork.process import child, launch
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.forking import fault_watchdog, freeze_before_fork
from pytest_cudafork.process.protocol import frames, messages, server_messages, sockets
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings
from pytest_cudafork.process.signals import ChildSignal, IgnoredSignals
from pytest_cudafork.process.unattended_jobs import UnattendedJobs

_LONGEST_TEXT = 2000
_BUSY_CORES = 2
"""The parent and the child at work have one each."""
_IDLE_MS = 3
_LOOK_MS = 200
"""How often to look at what children take."""
_CHECK_PARENT_MS = 1000
_FORKS_PER_STEP = 12
"""A step takes longer than a fork, and each makes every later one a little cheaper."""
_DYING_SECONDS = 10.0
"""How long children may take to end that were killed."""
_FORKS_PER_LOOK = 256
_MOST_GROWTH = 2.0
_GROWTH_BYTES = 256 << 20
"""A server that holds this much more than twice what it began with is replaced."""


class Prepared:
    """What the preparation has got ready for the jobs; this one is for jobs that need nothing."""

    def begin_child(self, stacks_fd: int) -> None:
        """Get ready in a child, before it has a job; it may have to wait for one anyway."""

    def job_for(self, channel: Channel, stacks_fd: int) -> Callable[[], int]:
        """Return what an attended child does, and its exit status: here as a ``Job`` tells it.

        It is called by the caller, whose stack is shorter.
        """
        job = channel.receive()
        if isinstance(job, messages.Job):
            return child.ready_job(channel, job, stacks_fd, self)
        # None: the parent has no use for this child
        return lambda: 0 if job is None else EXIT_LOST

    def limit_of(self, name: str) -> float | None:
        """Return how many seconds an unattended job may take; None: as long as the others."""
        return None

    def preload(self, name: str) -> bool:
        """Import a module in this process; False if it must not serve as the server after that."""
        try:
            __import__(name)
        except Exception:
            return False
        return True

    def grown(self) -> None:
        """Take note that modules were preloaded."""

    def wants_preloaded(self, name: str, left: bytes, exitcode: int, waiting: int) -> list[str]:
        """Return what to preload now that a job has ended, with ``waiting`` more to be run.

        ``left`` is what it left in its mailbox.
        """
        return []

    def worth_trying(self, names: list[str]) -> list[str]:
        """Return which modules to preload, of those that somebody wants."""
        return [name for name in dict.fromkeys(names) if name not in sys.modules]

    def refuse(self, name: str) -> None:
        """Take note that a module is not to be preloaded."""


class ForkServer:
    """The server's end of the connection to the parent, and its children."""

    def __init__(
        self,
        sock: sockets.AnySocket,
        settings: ServerSettings,
        cookie: bytes,
        outputs: tuple[int, int],
    ) -> None:
        self.settings = settings
        self.outputs = outputs
        """The parent's standard output and error, as they were when it started the server."""
        self.prepared = Prepared()
        self.poller = select.poll()
        self.signals = IgnoredSignals()
        self._child_signal = ChildSignal()
        self._sock = sock
        self._cookie = cookie
        self._parent = os.getppid()
        self._attended: dict[int, tuple[int, bytes]] = {}
        """Process id and cookie of each attended child by its pidfd."""
        self._reaped: set[bytes] = set()
        """The cookies of those that have ended; other processes may have their ids now."""
        self._jobs = UnattendedJobs(self, settings.limits)
        self._memory: freeze_before_fork.Collapse | None = None
        self._forks = 0
        self._asked = 0
        """How many children the parent waits for."""
        self._first_size = 0
        self._worn_out = False
        cores = max(1, launch.usable_cores() - _BUSY_CORES + 1)
        self._ahead = min(settings.most_ahead, cores)
        self.spare_cores = self._ahead > 1
        """Whether children that wait can use a core that nobody else needs."""
        self._quiet = warnings.catch_warnings()

    # -- the connection --------------------------------------------------------------------------

    def send(self, message: messages.Message, fds: tuple[int, ...] = ()) -> None:
        """Tell the parent; where it is gone, nobody."""
        with contextlib.suppress(OSError):
            self._send(message, fds)

    def _send(self, message: messages.Message, fds: tuple[int, ...]) -> None:
        sockets.send(self._sock, frames.encode(message.to_plain(), self._cookie), fds)

    def ready(self, why_not: CannotFork | None = None, **about: Any) -> None:
        """Tell the parent that the preparation is over, and what it has to know of it."""
        reason = None if why_not is None else why_not._asdict()
        self.send(server_messages.Ready(reason, self._ahead, about))

    @property
    def connection(self) -> sockets.AnySocket:
        """The socket, for those that watch whether the parent is still there."""
        return self._sock

    def _parent_waits(self) -> bool:
        return sockets.can_be_read(self._sock)

    # -- serving ---------------------------------------------------------------------------------

    def serve(self, prepared: Prepared | None = None, **about: Any) -> None:
        """Tell the parent that this is ready, and fork until the parent closes the connection.

        Args:
            prepared: What the children use.
            about: What the parent has to know.

        """
        self.prepared = prepared or self.prepared
        if self.settings.fold:
            self._memory = freeze_before_fork.Collapse()
            while not (self._memory.done or self._parent_waits()):
                self._memory.step()
        self.ready(**about)
        child.die_with_parent(False)  # it notices by itself, and ends the children's groups first
        # The threads that remain belong to libraries that know how to be forked. Entered once, not
        # for each fork: a child begins with copying what was written since the last.
        self._quiet.__enter__()
        warnings.filterwarnings("ignore", ".*use of fork\\(\\)", DeprecationWarning)
        if self.settings.ignore_signals:
            self.signals.begin()
        self._child_signal.begin()
        child.prepare_for_forks()
        self._first_size = freeze_before_fork.resident_bytes()
        for _ in range(self._ahead):
            self._fork_attended()
        self.poller.register(self._sock, select.POLLIN)
        while self._serve_once():
            # forked here, because each frame below the children is one that their jobs have not
            while self._asked:
                self._asked -= 1
                self._fork_attended()
        self._end()
        child.die_with_parent()
        if os.getppid() != self._parent:  # it was killed: nothing to finish
            os._exit(EXIT_LOST)

    def _serve_once(self) -> bool:
        """Wait for what comes next and do it; False when there is nothing more to do."""
        self._jobs.begin_some(may_grow=not self._attended)
        events = self.poller.poll(self._wait_ms())
        if not events:
            self._fold()
            if os.getppid() != self._parent:
                return False
        ended = {fd for fd, _ in events}
        for fd in ended & self._attended.keys():
            self._reap(fd)
            # the parent starts another server when this one is gone
            if self._worn_out and not self._attended:
                return False
        if self._sock.fileno() in ended and not self._take_message():
            return False
        self._jobs.look_after(ended)
        self._end_the_greedy()
        return True

    def _wait_ms(self) -> int:
        if self._jobs.running or (self._attended and self.settings.limits.memory):
            return _LOOK_MS
        return _IDLE_MS if self._can_fold else _CHECK_PARENT_MS

    @property
    def _can_fold(self) -> bool:
        return self._memory is not None and not self._memory.done

    def _fold(self) -> None:
        if self._memory is not None and not self._memory.done:
            self._memory.step()

    def _take_message(self) -> bool:
        """Do what the parent asks; False when it is gone."""
        try:
            data, fds = sockets.receive_with_fds(
                self._sock, server_messages.LONGEST_PACKET, server_messages.MOST_DESCRIPTORS
            )
        except ConnectionError:
            return False
        for fd in fds:  # none are due
            os.close(fd)
        message = messages.decode_or_none(frames.only(data, self._cookie))
        if isinstance(message, server_messages.Fork):
            if not self._worn_out:
                self._asked += 1
        elif isinstance(message, server_messages.QueueJobs):
            self._jobs.add(message.entry, message.names)
        elif isinstance(message, server_messages.DropJobs):
            self._jobs.drop(message.names)
        elif isinstance(message, server_messages.Preload):
            self._jobs.preload(message.names)
        return bool(data)

    def take_place(self) -> None:
        """Go on as the server in a child that was forked from it for that."""
        self._parent = os.getppid()
        self.send(server_messages.TookPlace(os.getpid()))

    # -- children --------------------------------------------------------------------------------

    def fork(self, body: Callable[[], NoReturn]) -> tuple[int, int]:
        """Fork a child that runs ``body``; return its process id and a pidfd that is polled.

        Raises:
            OSError: There is no process, memory or descriptor left.
            RuntimeError: The fork guard refuses.

        """
        parent = os.getpid()
        pid = fault_watchdog.fork_without(fork)
        if pid == 0:
            try:
                freeze_before_fork.freeze_in_child()
                self._quiet.__exit__(None, None, None)
                self._sock.close()
                for fd in (*self._attended, *self._jobs.pidfds()):
                    os.close(fd)
                child.forget_parent_exit_work()
                self.signals.end()
                self._child_signal.end()
                child.die_with_parent()
                leave_orphaned(parent)
                body()
            finally:
                os._exit(EXIT_LOST)
        with contextlib.suppress(OSError):  # the child may have done it, or be gone
            os.setpgid(pid, pid)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # nobody could watch it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.poller.register(pidfd, select.POLLIN)
        return pid, pidfd

    def _count_fork(self) -> None:
        """Look now and then at what many forks make of this process."""
        self._forks += 1
        if self._forks % _FORKS_PER_STEP == 0:
            self._fold()
        if self._forks % _FORKS_PER_LOOK == 0:
            limit = self._first_size * _MOST_GROWTH + _GROWTH_BYTES
            self._worn_out = freeze_before_fork.resident_bytes() > limit

    def _fork_attended(self) -> None:
        """Fork a child that waits for its work, and hand it to the parent."""
        cookie = frames.new_cookie()
        try:
            with contextlib.ExitStack() as ends:
                ours, theirs = map(ends.enter_context, sockets.pair())
                stacks = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)
                ends.callback(os.close, stacks)
                body = functools.partial(self._be_attended, ours, theirs, stacks, cookie)
                pid, pidfd = self.fork(body)
                self._attended[pidfd] = (pid, cookie)
                self._send(server_messages.ChildForked(pid, cookie), (ours.fileno(), stacks))
        # no memory, processes or descriptors; the fork guard; or the parent is gone
        except (OSError, RuntimeError) as error:
            text = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
            self.send(server_messages.ForkRefused(text))
        self._count_fork()

    def _be_attended(
        self, ours: sockets.AnySocket, theirs: sockets.AnySocket, stacks: int, cookie: bytes
    ) -> NoReturn:
        """Wait for a job, in the child, and do it."""
        status = EXIT_LOST
        channel = None
        try:
            ours.close()
            child.prepare(stacks)
            leftovers.mark_process(cookie)
            channel = Channel(theirs, cookie)
            self.prepared.begin_child(stacks)
            status = self.prepared.job_for(channel, stacks)()
        except BaseException as error:
            if channel is None:
                sys.stderr.write(child.text_of(error))
            else:
                channel.leave_if_not_mine()
                with contextlib.suppress(OSError):
                    channel.send(messages.InternalError(child.text_of(error)))
        finally:
            if channel is not None:
                channel.leave_if_not_mine()
            child.leave(status, channel)

    def _reap(self, pidfd: int) -> None:
        """Clear away a dead child, with what is left of its process group.

        After a crash the parent ends its descendants, by their mark: some of them tidy up first.
        Where the parent has died, too, ``_end`` does that: a child may notice its death, and end,
        before this process does.
        """
        pid, cookie = self._attended.pop(pidfd)
        self._reaped.add(cookie)
        self.poller.unregister(pidfd)
        died = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        well = died is not None and died.si_code == os.CLD_EXITED and died.si_status == 0
        if well or not leftovers.is_marked(pid, cookie):
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self.send(server_messages.ChildEnded(pid, os.waitstatus_to_exitcode(status)))

    def _end_the_greedy(self) -> None:
        """Kill attended children that hold more memory than they may."""
        limit = self.settings.limits.memory
        if limit:
            for pid, _ in self._attended.values():
                if freeze_before_fork.bytes_beyond_ours(pid) > limit:
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        """End all children; the one that waits for work ends with this."""
        for pid, _ in self._attended.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            self._jobs.end()
            running = {cookie: pid for pid, cookie in self._attended.values()}
            leftovers.end({**dict.fromkeys(self._reaped, 0), **running})
        finally:  # where no descriptor is left to look for what they have started, too
            self._reap_all()

    def _reap_all(self) -> None:
        """Clear away the attended children, which were killed, with their process groups."""
        until = time.monotonic() + _DYING_SECONDS
        for pidfd, (pid, _) in self._attended.items():
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            # one that hangs in the kernel is left to init
            select.select([pidfd], [], [], max(0.0, until - time.monotonic()))
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
            os.close(pidfd)
        self._attended.clear()


def leave_orphaned(parent: int) -> None:
    """End this process if its parent died before it could ask the kernel to die with it."""
    if os.getppid() != parent:
        os._exit(EXIT_LOST)


def main(control_fd: int, request_fd: int, stacks_fd: int, stdout: int, stderr: int) -> NoReturn:
    """Run as the fork server.

    Args:
        control_fd: The connection to the parent.
        request_fd: The memory file with the settings.
        stacks_fd: Where stacks are written on a fatal signal.
        stdout: The parent's standard output; -1 if no child needs it.
        stderr: Likewise its standard error.

    """
    for fd in (control_fd, request_fd, stacks_fd, stdout, stderr):
        if fd >= 0:
            os.set_inheritable(fd, False)
    gc.disable()  # until everything is imported; it takes a third of the time
    sock = sockets.Endpoint(control_fd)
    status = EXIT_LOST
    server: ForkServer | None = None
    try:
        child.prepare(stacks_fd)
        request = child.read_request(request_fd)
        leftovers.mark_process(request["cookie"])
        settings = ServerSettings.from_plain(request["settings"])
        sys.path[:] = settings.path
        sys.argv[:] = settings.argv
        server = ForkServer(sock, settings, request["cookie"], (stdout, stderr))
        if settings.prepare:
            child.look_up(settings.prepare)(server)
        else:
            server.serve()
        status = 0
    except BaseException as error:
        sys.stderr.write(child.text_of(error))
    finally:
        child.leave(status, server)
