"""An engine's processes as the front end holds them: what is said to them, their life and death.

Whoever waits for a message waits for the death, too, so that a dead core is noticed at once. One
thread at a time holds it; :meth:`CoreHandle.end` of another thread, or of a signal handler, gets in
between.

Where there are several ranks, the front end talks to rank 0 and listens to all. One that is lost
takes the others with it: they wait for it in the middle of a step.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import termios
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import EngineDeadError, RankLostError
from sample_engine.process.core_process import CoreFactory
from sample_engine.process.interrupts import interrupts_deferred
from sample_engine.process.lost_rank import words_on_dead, words_on_stuck
from sample_engine.process.messages import (
    MOST_BYTES,
    Failed,
    MessageError,
    Stop,
    Stopped,
    ToCore,
    ToFrontEnd,
    decode_to_front_end,
    encode,
)
from sample_engine.process.rank_process import KILL_SECONDS, STUCK_SECONDS, RankProcess
from sample_engine.process.start_ranks import start_ranks, step_seconds

__all__ = ["CoreHandle"]

_REAP_SECONDS = 5.0
_TERMINATE_SECONDS = 2.0
_LAST_SECONDS = 1.0
# How long another rank's own words, or its death, are waited for after one was found missing.
_CAUSE_SECONDS = 10.0
# Messages that are read at one go: so many that a fast core does not keep the reader for ever.
_MOST_AT_ONCE = 64
# The longest sleep: a signal that comes just before a sleep does not end it, and is heard after it.
_HEAR_SECONDS = 1.0
_Result = TypeVar("_Result")


class _Over(Exception):
    """Nothing can be said to the process any more; ``CoreHandle._why`` says why."""


class CoreHandle:
    """An engine's processes. Starting them is all the constructor does; it waits for nothing."""

    def __init__(self, method: WorkerMethod, config: EngineConfig, factory: CoreFactory) -> None:
        self._owner = os.getpid()
        self._death: EngineDeadError | None = None
        self._death_reported = False
        # A signal handler may end the process in the middle of a call of its own thread.
        self._turn = threading.RLock()
        self._to_end = False
        self._waking = threading.RLock()
        self._wake: tuple[int, int] | None = None  # a pipe: readable once somebody ends the process
        self._step_seconds = step_seconds()
        self._stopped_since: dict[int, float] = {}
        self._ranks = start_ranks(method, config, factory, self._owner, self._step_seconds)
        self._core = self._ranks[0]
        self.pids = tuple(rank.pid for rank in self._ranks)
        self.pid = self._core.pid
        self._wake = os.pipe()  # made after the core, which has no use for it

    @property
    def name(self) -> str:
        """The core's process, for messages."""
        return self._core.name

    def name_of(self, rank: int) -> str:
        """A rank's process, for messages."""
        return self._ranks[rank].name

    def check(self) -> None:
        """Raise :class:`EngineDeadError` if the core is gone, or is another process' to talk to."""
        if self._is_over():
            raise self._why()

    def send(self, message: ToCore, *, quiet: bool = False) -> None:
        """Say something. Raises :class:`EngineDeadError` if nobody is there to read it.

        Nothing is raised while something is left to be received: that tells why, and comes first.
        ``quiet``: nothing is raised, and it is left to the next call to tell of a death.
        """
        try:
            self._in_turn(lambda: self._send(message))
        except _Over:
            if not quiet:
                raise self._why() from None

    def receive(self, timeout: float | None, take: Callable[[ToFrontEnd], object]) -> int:
        """Wait for messages, hand all that are there to ``take``, and return how many they were.

        After ``timeout`` seconds there are none. Ctrl-C comes between two messages as little as in
        the middle of one: what was read has been taken. Raises :class:`EngineDeadError` when the
        process is dead and all that it said has been read.
        """
        try:
            return self._in_turn(lambda: self._receive(timeout, take))
        except _Over:
            raise self._why() from None

    def cause_of(self, failed: Failed, take: Callable[[ToFrontEnd], object]) -> Failed:
        """What a failure came from: where a rank only misses another one, what became of that.

        ``take`` is handed what else the ranks have said meanwhile. Raises :class:`EngineDeadError`
        where that other one has died or does not go on, and could not say so.
        """
        if failed.error_type != RankLostError.__name__ or len(self._ranks) == 1:
            return failed
        try:
            return self._in_turn(lambda: self._cause_of(failed, take))
        except _Over:
            raise self._why() from None

    def end(self, seconds: float) -> None:
        """End the process: ask, and after some seconds terminate, and kill; twice does no harm.

        Calls of other threads that are under way end with :class:`EngineDeadError`. In a child that
        was forked from its owner it is left alone: it is not the child's.
        """
        if self._death is not None or os.getpid() != self._owner:
            return
        deadline = time.monotonic() + seconds
        self._to_end = True
        with self._waking:
            if self._wake is not None:
                os.write(self._wake[1], b"!")
        if not self._turn.acquire(timeout=max(seconds, _LAST_SECONDS)):
            # A thread waits in the middle of a message. The death lets it go.
            for rank in self._ranks:
                rank.send_signal(signal.SIGKILL)
            self._turn.acquire()
        try:
            if self._death is None:
                self._end(deadline)
        finally:
            self._turn.release()

    def give_up(self, why: str, rank: int = 0) -> None:
        """End the process at once; ``why`` is what is said to whoever still wants something.

        ``rank`` is the one that it is said of.
        """
        with self._turn:
            if self._death is None:
                self._wait_for_end(_LAST_SECONDS)  # most likely it is about to end by itself
                self._end_now(f"{self.name_of(rank)} {why}")

    def stacks(self) -> str:
        """Make the process write what its threads do, and return it; "" if it does not."""
        if len(self._ranks) == 1:
            return self._core.stacks()
        return "\n".join(f"{rank.name}:\n{rank.stacks()}" for rank in self._ranks)

    @property
    def _shut_down(self) -> str:
        return f"{self.name} was shut down: make a new engine."

    def _is_over(self) -> bool:
        return self._death is not None or self._to_end or os.getpid() != self._owner

    def _why(self) -> EngineDeadError:
        """Why nothing can be said any more. Of a death all of it once, then where that was said."""
        if self._death is not None:
            first, more, _ = str(self._death).partition("\n")
            reported, self._death_reported = self._death_reported, True
            if reported and more:
                return EngineDeadError(f"{first} The first error that told of it says more.")
            return EngineDeadError(str(self._death))
        if os.getpid() != self._owner:
            return EngineDeadError(
                f"{self.name} belongs to process {self._owner}, from which this one was forked: "
                "make a new engine here."
            )
        return EngineDeadError(self._shut_down)

    def _in_turn(self, call: Callable[[], _Result]) -> _Result:
        """Let one thread at a time talk to the process, and none once somebody ends it."""
        if self._is_over():
            raise _Over  # before the lock: in a forked child nobody may be left to release it
        with self._turn:
            if self._is_over():
                raise _Over
            try:
                return call()
            except (OSError, TypeError, ValueError):
                # A signal handler has ended the process between two lines of the call, which then
                # finds closed what it had looked at before, or None where a descriptor was.
                if self._death is not None:
                    raise _Over from None
                raise

    def _send(self, message: ToCore) -> None:
        try:
            with interrupts_deferred():
                self._core.connection.send_bytes(encode(message))
        except BlockingIOError:
            raise self._stuck(self._core, "does not take what it is told") from None
        except OSError:
            if not any(_is_unread(rank.connection) for rank in self._ranks):
                raise self._dead(self._ranks) from None

    def _receive(
        self,
        timeout: float | None,
        take: Callable[[ToFrontEnd], object],
        *,
        ending: bool = False,
    ) -> int:
        """Wait and read; ``ending``: for the thread that ends the process, the others are woken."""
        ranks = self._ranks[:1] if ending else self._ranks
        woken = self._wake[:1] if self._wake is not None and not ending else ()
        watched = [fd for rank in ranks for fd in rank.watched]
        ready = _wait([*(rank.connection for rank in ranks), *watched, *woken], timeout)
        if not ending and self._is_over():
            raise _Over
        if not ready:
            self._look_for_stopped()
            return 0
        found = sum(self._read(rank, take) for rank in ranks)
        if not found:  # nothing to read, and still something was ready: a process has ended
            _wait_for_a_cause(self._ranks, _REAP_SECONDS)
            found = sum(self._read(rank, take) for rank in ranks)  # said meanwhile, by others
        if not found:
            raise self._dead(self._ranks)
        return found

    def _read(self, rank: RankProcess, take: Callable[[ToFrontEnd], object]) -> int:
        """Read what a process has said, and return how many messages that were.

        A pipe that is closed has none: what became of the process is looked at after all of them
        have been read.
        """
        found = 0
        try:
            with interrupts_deferred():
                while found < _MOST_AT_ONCE and rank.connection.poll(0):
                    message = decode_to_front_end(rank.connection.recv_bytes(MOST_BYTES))
                    found += 1
                    take(message)
        except BlockingIOError:
            raise self._stuck(rank, "stopped in the middle of a message") from None
        except MessageError as error:
            self._end_now(f"{rank.name} was ended: {error}")
            self._death_reported = True
            raise
        except (EOFError, OSError):
            pass
        return found

    def _cause_of(self, failed: Failed, take: Callable[[ToFrontEnd], object]) -> Failed:
        """Wait for a rank that says more, or has died without a word.

        One that has ended with exit code 0 misses rank 0, unless no other is left.
        """
        said = {failed.rank: failed}
        deadline = time.monotonic() + _CAUSE_SECONDS
        while len(said) < len(self._ranks) and time.monotonic() < deadline:
            silent: list[RankProcess] = []
            for number, rank in enumerate(self._ranks):
                was_dead = rank.wait_for_end(0)  # before the pipe is read to its end
                failures: list[Failed] = []
                count = self._read(rank, _sorter(failures, take))
                for other in failures:
                    said[number] = other
                    if other.error_type != RankLostError.__name__:
                        return other
                if was_dead and not count and number not in said:
                    silent.append(rank)
            are_all = len(silent) + len(said) == len(self._ranks)
            if any(rank.exit_code() != 0 or are_all for rank in silent):
                raise self._dead(silent)
            time.sleep(0.01)
        self._end_now(words_on_stuck(self._ranks, said))
        raise _Over

    def _look_for_stopped(self) -> None:
        """End an engine of several ranks one of which was stopped by a signal and not resumed.

        In a step the others' watch over it notices; between two steps nobody else does.
        """
        if len(self._ranks) == 1:
            return
        now = time.monotonic()
        stopped = {number for number, rank in enumerate(self._ranks) if rank.is_stopped()}
        self._stopped_since = {n: self._stopped_since.get(n, now) for n in stopped}
        if any(now - since > self._step_seconds for since in self._stopped_since.values()):
            self._end_now(words_on_stuck(self._ranks, {}))
            raise _Over

    def _end(self, deadline: float) -> None:
        if any(rank.wait_for_end(0) for rank in self._ranks):  # and the others wait for it
            deadline = min(deadline, time.monotonic() + _LAST_SECONDS)
        with contextlib.suppress(_Over, MessageError):
            self._send(Stop())
            while (left := deadline - time.monotonic()) > 0:
                # A core that waits for somebody to read cannot hear the word.
                words: list[ToFrontEnd] = []
                self._receive(left, words.append, ending=True)
                if any(isinstance(word, Stopped) for word in words):
                    break
        if self._death is None:
            self._wait_for_end(max(0.1, deadline - time.monotonic()))
            self._end_now(self._shut_down)

    def _stuck(self, rank: RankProcess, what: str) -> _Over:
        if self._death is None:
            stacks = self.stacks()
            self._end_now(
                f"{rank.name} {what} for {STUCK_SECONDS} seconds and was ended.\n"
                f"Its stacks:\n{stacks}"
            )
        return _Over()

    def _dead(self, ranks: Sequence[RankProcess]) -> _Over:
        """Reap the processes and note what became of these."""
        if self._death is None:
            _wait_for_a_cause(ranks, _REAP_SECONDS)
            # Shut down by the handler of a signal in the middle of a message, its answer is lost.
            asked = self._to_end and all(rank.exit_code() == 0 for rank in self._ranks)
            self._end_now(self._shut_down if asked else words_on_dead(ranks))
        return _Over()

    def _end_now(self, why: str) -> None:
        if self._death is not None:  # a signal handler was faster
            return
        self._death = EngineDeadError(why)
        for number, seconds in (
            (signal.SIGTERM, _TERMINATE_SECONDS),
            (signal.SIGKILL, KILL_SECONDS),
        ):
            alive = [rank for rank in self._ranks if not rank.wait_for_end(0)]
            for rank in alive:
                rank.send_signal(number)
            _wait_for_all(alive, seconds)
        for rank in self._ranks:
            rank.exit_code()  # reaps it
        self._close()

    def _wait_for_end(self, seconds: float) -> None:
        _wait_for_all(self._ranks, seconds)

    def _close(self) -> None:
        """Give all descriptors back."""
        with self._waking:
            wake, self._wake = self._wake, None
        for fd in wake or ():
            os.close(fd)
        for rank in self._ranks:
            rank.close()


def _wait(objects: Sequence[Any], timeout: float | None) -> list[Any]:
    """Wait until one of them is ready, in several sleeps, between which signals are heard."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _HEAR_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(objects, min(left, _HEAR_SECONDS))
        if ready or (deadline is not None and left <= _HEAR_SECONDS):
            return ready


def _is_unread(connection: Connection) -> bool:
    """Whether something has come that nobody has read. The end of a pipe is nothing."""
    count = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.FIONREAD, count)
    return count[0] > 0


def _sorter(
    failures: list[Failed], take: Callable[[ToFrontEnd], object]
) -> Callable[[ToFrontEnd], None]:
    """What takes messages and puts failures aside."""

    def sort(message: ToFrontEnd) -> None:
        if isinstance(message, Failed):
            failures.append(message)
        else:
            take(message)

    return sort


def _wait_for_a_cause(ranks: Sequence[RankProcess], seconds: float) -> None:
    """Wait until one has died for itself. One whose rank 0 is gone ends with exit code 0."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        alive = [rank for rank in ranks if not rank.wait_for_end(0)]
        if not alive or any(rank.exit_code() != 0 for rank in ranks if rank not in alive):
            return
        wait([fd for rank in alive for fd in rank.watched[-1:]], left)


def _wait_for_all(ranks: Sequence[RankProcess], seconds: float) -> None:
    """Wait until all of them are dead, or so many seconds are over."""
    deadline = time.monotonic() + seconds
    for rank in ranks:
        rank.wait_for_end(max(0.0, deadline - time.monotonic()))
