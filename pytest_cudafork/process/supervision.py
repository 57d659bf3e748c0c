"""The watch over one running child: its messages, its time limit, its end, its descendants.

What the messages mean is for the function that takes them (``OnMessage``) to say.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_cudafork.compat.unpatched import (
    contextlib,
    os,
    resource,
    select,
    signal,
    socket,
    time,
)
from pytest_cudafork.process import exit_status, hang_stacks, launch, native_stacks
from pytest_cudafork.process.channel import Outbox
from pytest_cudafork.process.descendants import leftovers, process_state
from pytest_cudafork.process.loud_warning import end_loudly
from pytest_cudafork.process.protocol import frames, messages, sockets
from pytest_cudafork.process.signals import ChildSignal, Held

_READ_BYTES = 1 << 18
_STACKS_SECONDS = 10.0
"""How long a child that is told to abort may take to write its stacks."""
EXIT_SECONDS = 30.0
"""How long a child may take to end, from its last word on: the kernel takes it apart meanwhile."""
_LEAVE_SECONDS = 2.0
"""What a child has at least from its result on, for what runs at its end, if its time is up."""
_KILL_SECONDS = 30.0
"""How long a child that was killed may take to end."""
_LOOK_SECONDS = 0.02
"""How often to look at a child without a pidfd."""
_ON_LOOK_SECONDS = 0.05
"""How often to call who wants to look at a child."""
_AHEAD_MS = 5
"""How long a child works by itself before its messages are read, unless it ends."""
_LATE_READS = 1000
"""How often to read at most once it is dead or its time is up: more than a socket holds."""
_LONGEST_WAIT_SECONDS = 3600.0
"""What one wait may take: poll counts milliseconds in a C int, and a limit may be infinite."""


class Said(enum.Enum):
    """What a message means for the watch."""

    MORE = "more"  # others follow
    AHEAD = "ahead"  # the result is complete, and the child has gone on to its next work
    LEAVING = "leaving"  # the result is complete; what runs at the end of a process follows
    DONE = "done"  # the child has nothing left to do but end, or waits for its next work


_DONE = (Said.DONE, Said.AHEAD)

OnMessage = Callable[[messages.Message, "list[int]"], Said]
"""Takes a message and the descriptors that came with it, to close."""


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    ``exitcode`` is negative for a signal; ``timed_out`` (with ``finished``: after its result) and
    ``lingered`` (it had nothing left to do and did not end) mean that it was killed for that;
    ``malformed`` says what was wrong with what it sent, or is ""; ``stacks`` is what faulthandler
    wrote; ``native`` what py-spy did, and ``state`` what the kernel said, of one that was killed;
    ``stuck`` says that it did not die of it.
    """

    exitcode: int
    timed_out: bool
    lingered: bool
    finished: bool
    malformed: str
    stacks: str
    seconds: float
    native: str = ""
    state: str = ""
    stuck: bool = False
    status_lost: str = ""
    """Why nobody here knows how it ended, as the predicate of a sentence; empty if it is known."""


class Stream(Protocol):
    """What is read while a child is watched, beside its messages."""

    def fileno(self) -> int:
        """Return its descriptor; -1 once it has ended."""

    def take(self) -> None:
        """Read once what there is."""


class Supervisor:
    """Watches one child to its end, or for as long as it has work; afterwards nothing is left."""

    def __init__(
        self,
        running: launch.Running,
        sweeper: leftovers.Sweeper | None = None,
        streams: Sequence[Stream] = (),
    ) -> None:
        """Watch a child; ``sweeper`` ends later what is left of it if it ends well.

        ``streams`` are read meanwhile; what they hold at the end is left to their owner.
        """
        self.running = running
        self._sweeper = sweeper
        self._streams = streams
        self._decoder = frames.Decoder(running.cookie)
        self._on_message: OnMessage = _nothing_expected
        self._said = Said.MORE
        self._ahead = False
        self._malformed = self._status_lost = ""
        self._hung_up = False
        self._stacks = self._native = self._state = ""
        self._stuck = self._asked = False
        self._over_at: float | None = None
        self.trouble = ""
        """What went wrong after the child had said that it was done, as the predicate of a
        sentence about it; known once it is settled."""
        self.on_look: Callable[[], None] | None = None
        """Called now and then while the child is watched."""
        self.held = Held()
        """What holds signals back while messages are handled; by default none are."""
        self.outbox = Outbox(running.sock, running.cookie)
        """What the child is to be told; sent while it is watched."""

    def watch(
        self, on_message: OnMessage, timeout: float | None, *, until_done: bool = False
    ) -> Ending | None:
        """Wait for the child's end and return how it was.

        With ``until_done`` return None as soon as the child says that it is done: the caller then
        gives it more work and watches again, or lets go of it with ``settle``.

        Whatever ends this early (KeyboardInterrupt, an exception of ``on_message``), the child and
        its group are killed and reaped first.
        """
        with ChildSignal().kept():
            return self._watch(on_message, timeout, until_done)

    def _watch(
        self, on_message: OnMessage, timeout: float | None, until_done: bool
    ) -> Ending | None:
        start = time.monotonic()
        self._ahead = self._said is Said.AHEAD
        self._on_message, self._said = on_message, Said.MORE
        timed_out = lingered = False
        settled = False
        try:
            deadline = None if timeout is None else start + timeout
            dead = self._until_dead(deadline, until_done)
            if dead and self._said not in _DONE:
                self._drain()  # its last word may lie behind a message that came with descriptors
            if until_done and self._said in _DONE and not self._malformed:
                settled = True
                return None
            if not dead:
                lingered = self._said is Said.DONE
                timed_out = not (lingered or self._malformed)
                self._abort()
            self._drain()
        except BaseException:
            settled = until_done and self._had_finished()
            if settled:
                return None
            raise
        finally:
            exitcode = 0 if settled else self._clean_up()
        return Ending(
            exitcode,
            timed_out,
            lingered,
            self._said is not Said.MORE,
            self._malformed,
            self._stacks,
            time.monotonic() - start,
            self._native,
            self._state,
            self._stuck,
            "" if self._said is Said.DONE else self._status_lost,
        )

    def _had_finished(self) -> bool:
        """Whether a child that this process was told to end had finished its work; it is killed."""
        if not self.held.struck:
            return False
        with contextlib.suppress(OSError):
            os.kill(self.running.pid, signal.SIGKILL)
        self._until_killed()
        self._drain()
        return self._said in _DONE and not self._malformed

    def settle(self, *, wait: bool) -> bool:
        """Clear away a child that is done; False if it still runs and may do so a little longer.

        With ``wait`` it has EXIT_SECONDS from its last word, and is then killed. How it ended is
        known afterwards: see ``trouble``.
        """
        if self._over_at is None:
            self._over_at = time.monotonic() + EXIT_SECONDS
        while not self._dead():
            left = self._over_at - time.monotonic()
            if left <= 0:
                break
            if not wait:
                return False
            if self.running.pidfd >= 0:
                select.select([self.running.pidfd], [], [], left)
            else:
                time.sleep(_LOOK_SECONDS)
        killed = not self._dead()
        exitcode = self._clean_up()
        if killed:
            self.trouble = f"did not end within {EXIT_SECONDS:g} s and was killed"
        elif exitcode != 0 and not self._status_lost:
            self.trouble = exit_status.describe(exitcode)
        return True

    def kill(self) -> None:
        """End the child now, whatever it does."""
        self._clean_up()

    def _until_dead(self, deadline: float | None, until_done: bool) -> bool:
        """Take messages until the child is dead or done; False when the deadline comes first.

        What the child has said is taken before its time is judged to be up: this process may have
        been stopped meanwhile, or had to wait for a core.
        """
        said, late_reads = Said.MORE, _LATE_READS
        if self._ahead:
            self._handle(b"", [])  # what has come with the end of its last work
            if self._said is Said.MORE and not self._malformed:
                poller = select.poll()
                if self.running.pidfd >= 0:
                    poller.register(self.running.pidfd, select.POLLIN)
                with self.held.waiting():
                    poller.poll(_AHEAD_MS)
        while True:
            if self._malformed or (until_done and self._said in _DONE):
                return False
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._wait(left):
                return True
            if self._said is not said:
                said = self._said
                deadline = _deadline_after(said, deadline)
            elif left == 0.0:
                late_reads -= 1
                if not (late_reads and self._has_something_to_read()):
                    return False

    def _wait(self, seconds: float | None) -> bool:
        """Wait for a message or the end, take what came; True when the child is dead."""
        running = self.running
        if self.on_look is not None:
            self.on_look()
            seconds = _ON_LOOK_SECONDS if seconds is None else min(seconds, _ON_LOOK_SECONDS)
        poller = select.poll()
        if not self._hung_up:
            more = select.POLLOUT if self.outbox else 0
            poller.register(running.sock, select.POLLIN | more)
        for stream in self._streams:
            if stream.fileno() >= 0:
                poller.register(stream.fileno(), select.POLLIN)
        if running.pidfd >= 0:
            poller.register(running.pidfd, select.POLLIN)
        elif seconds is None or seconds > _LOOK_SECONDS:
            seconds = _LOOK_SECONDS
        if seconds is not None:
            seconds = min(seconds, _LONGEST_WAIT_SECONDS)
        # rounded up, or the last millisecond would be spent in a busy loop
        with self.held.waiting():
            ready = dict(poller.poll(None if seconds is None else int(seconds * 1000) + 1))
        events = ready.get(running.sock.fileno(), 0)
        if events & select.POLLOUT:
            self.outbox.flush()
        if events & ~select.POLLOUT:
            self._receive()
        for stream in self._streams:
            if stream.fileno() in ready:
                stream.take()
        return running.pidfd in ready if running.pidfd >= 0 else self._dead()

    def _has_something_to_read(self) -> bool:
        return not self._hung_up and sockets.can_be_read(self.running.sock)

    def _dead(self) -> bool:
        """Whether the child has ended (it is still a zombie, for nobody has reaped it)."""
        if self.running.pidfd >= 0:
            return self.running.has_ended
        return not process_state.lives(self.running.pid)

    def _receive(self, flags: int = 0) -> bool:
        """Read once and handle the messages; False when there is nothing more to read."""
        fds: list[int] = []
        sock = self.running.sock
        try:
            data, fds = sockets.receive_with_fds(sock, _READ_BYTES, messages.MOST_FDS, flags)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._hung_up = True
            return False
        return self._handle(data, fds)

    def _handle(self, data: bytes, fds: list[int]) -> bool:
        """Handle what was read, up to the end of this work; False if it is no message."""
        try:
            for plain in self._decoder.feed(data):
                message = messages.decode(plain)
                taken, fds = fds, []
                said = self._on_message(message, taken)
                self._said = self._said if said is Said.MORE else said
                if self._said is Said.AHEAD:
                    break
        except frames.FrameError as error:
            self._malformed = str(error)
            self._hung_up = True
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _drain(self) -> None:
        """Take what the dead child has sent, but wait for nothing: descendants may hold its end.

        They may write there for ever, too.
        """
        for _ in range(_LATE_READS):
            if self._said is Said.AHEAD:
                return
            if self._hung_up or not self._receive(int(socket.MSG_DONTWAIT)):
                break
        if self._decoder.pending and not self._malformed:
            self._malformed = f"the last message is cut off after {self._decoder.pending} bytes"

    def _abort(self) -> None:
        """Let the child write its stacks and die of it; else it is killed."""
        if self._malformed:
            return
        pid = self.running.pid
        self._native = native_stacks.native_stacks(pid)
        self._state = native_stacks.thread_states(pid)
        with contextlib.suppress(OSError, ValueError):  # a core file would only take time
            _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
        self._asked = hang_stacks.ask(pid)
        if not self._asked:
            why = native_stacks.why_no_stacks(pid)
            self._state = f"{why}\n{self._state}"
            return
        deadline = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < deadline:
            if self._wait(deadline - time.monotonic()) or self._malformed:
                break

    def _clean_up(self) -> int:
        """Kill what is left of the child and its descendants, reap it, and close everything."""
        running = self.running
        killed = not self._dead()
        strays: list[int] = []
        if killed:
            if not leftovers.is_marked(running.pid, running.cookie):
                strays = leftovers.descendants(running.pid)
            for pid in (running.pid, *strays):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._until_killed()
        exitcode = -signal.SIGKILL
        try:
            if running.ends_group:
                exitcode = self._reap(exitcode)
                self._end_descendants(well=not killed and exitcode == 0)
            else:
                self._end_descendants(well=not killed and self._ended_well())
                with contextlib.suppress(OSError):  # nobody else is in the group
                    os.killpg(running.pid, signal.SIGKILL)
                exitcode = self._reap(exitcode)
        finally:
            self._stacks = hang_stacks.written_to(running.stacks_fd, asked=self._asked)
            running.close()
        return exitcode

    def _reap(self, exitcode: int) -> int:
        """Reap the dead child; return its exit code, or the given one where it is not known."""
        if self._stuck:
            return exitcode
        found = self.running.reap()
        if found is not None:
            return found
        served = self.running.ends_group
        self._status_lost = exit_status.WITH_SERVER if served else exit_status.REAPED
        return 0 if self._said is Said.DONE and not served else exitcode  # nothing left to fail

    def _end_descendants(self, *, well: bool) -> None:
        """End what has the child's mark: at once after a bad end, else when it suits."""
        cookie, pid, later = self.running.cookie, self.running.pid, self._sweeper
        if not (well and later) and end_loudly(lambda: leftovers.end({cookie: pid})):
            self.running.is_over()
        elif later is not None:
            later.add(cookie, pid, self.running.is_over)

    def _ended_well(self) -> bool:
        """Whether a dead child of this process has exited with status 0; it is not reaped here."""
        try:
            died = os.waitid(os.P_PID, self.running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else has reaped it
            return False
        return died is not None and died.si_code == os.CLD_EXITED and died.si_status == 0

    def _until_killed(self) -> None:
        """Wait for the end of a child that was killed; one that hangs in a driver may never end."""
        until = time.monotonic() + _KILL_SECONDS
        while not self._dead():
            if time.monotonic() > until:
                self._stuck = True
                return
            if self.running.pidfd >= 0:
                select.select([self.running.pidfd], [], [], 1.0)
            else:
                time.sleep(_LOOK_SECONDS)


def _deadline_after(said: Said, deadline: float | None) -> float | None:
    """Return until when a child may run that has said so; what runs at its end is in its limit."""
    now = time.monotonic()
    if said is Said.DONE:
        return now + EXIT_SECONDS
    return None if deadline is None else max(deadline, now + _LEAVE_SECONDS)


def _nothing_expected(message: messages.Message, fds: list[int]) -> Said:
    """Take a message of a child that was given nothing to do.

    Raises:
        FrameError: Always.

    """
    raise frames.FrameError(f"a message of kind {message.kind!r} came before any work was given")
