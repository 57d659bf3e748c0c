"""A core's process as the front end holds it: its pipe, its life and its death.

Whoever waits for a message waits for the death, too, so that a dead core is noticed at once. One
thread at a time holds it; :meth:`CoreHandle.end` of another thread, or of a signal handler, gets in
between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import TypeVar

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import EngineDeadError
from sample_engine.process.core_process import CoreFactory, CoreOrder, run_core
from sample_engine.process.interrupts import interrupts_deferred
from sample_engine.process.launch import launch
from sample_engine.process.messages import (
    MOST_BYTES,
    MessageError,
    Stop,
    Stopped,
    ToCore,
    ToFrontEnd,
    decode_to_front_end,
    encode,
)
from sample_engine.process.stderr_log import STACKS_SIGNAL, StderrLog, are_whole

__all__ = ["CoreHandle"]

# A core that for so long takes no byte of a message, or does not go on with one, is stuck.
_STUCK_SECONDS = 60
_REAP_SECONDS = 5.0
_TERMINATE_SECONDS = 2.0
# What is killed dies, but a busy machine and a big process take their time.
_KILL_SECONDS = 30.0
_LAST_SECONDS = 1.0
# A fork server has to be given a processor before it can tell of a death that is known already.
_TOLD_SECONDS = 30.0
_STACKS_SECONDS = 10.0
# Messages that are read at one go: so many that a fast core does not keep the reader for ever.
_MOST_AT_ONCE = 64
_Result = TypeVar("_Result")


class _Over(Exception):
    """Nothing can be said to the process any more; ``CoreHandle._why`` says why."""


class CoreHandle:
    """A core's process. Starting it is all that the constructor does; it waits for nothing."""

    def __init__(self, method: WorkerMethod, config: EngineConfig, factory: CoreFactory) -> None:
        self._method = method
        self._owner = os.getpid()
        self._connection, theirs = Pipe()
        self._stderr_log = StderrLog()
        self._death: EngineDeadError | None = None
        self._death_reported = False
        # A signal handler may end the process in the middle of a call of its own thread.
        self._turn = threading.RLock()
        self._to_end = False
        self._waking = threading.RLock()
        self._wake: tuple[int, int] | None = None  # a pipe: readable once somebody ends the process
        self._watched: list[int] = []  # readable once the process is dead; the best one last
        to_close = self._connection if method is WorkerMethod.FORK else None
        order = CoreOrder(theirs, factory, config, self._owner, self._stderr_log, to_close)
        try:
            self._process = launch(method, run_core, (order,))
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid or 0
        self._watched = [self._process.sentinel]
        with contextlib.suppress(AttributeError, OSError):
            # The sentinel alone does not tell of the death if a child of the core holds it.
            self._watched.append(os.pidfd_open(self.pid))
        self._wake = os.pipe()  # made after the core, which has no use for it
        _limit_waits(self._connection)

    @property
    def name(self) -> str:
        """The process, for messages."""
        return f"The engine core (pid {self.pid}, started by {self._method.value})"

    def check(self) -> None:
        """Raise :class:`EngineDeadError` if the core is gone, or is another process' to talk to."""
        if self._is_over():
            raise self._why()

    def send(self, message: ToCore, *, quiet: bool = False) -> None:
        """Say something. Raises :class:`EngineDeadError` if nobody is there to read it.

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
            self._signal(signal.SIGKILL)
            self._turn.acquire()
        try:
            if self._death is None:
                self._end(deadline)
        finally:
            self._turn.release()

    def give_up(self, why: str) -> None:
        """End the process at once; ``why`` is what is said to whoever still wants something."""
        with self._turn:
            if self._death is None:
                self._wait_for_end(_LAST_SECONDS)  # most likely it is about to end by itself
                self._end_now(f"{self.name} {why}")

    def stacks(self) -> str:
        """Make the process write what its threads do, and return it; "" if it does not."""
        before = self._stderr_log.size()
        self._signal(STACKS_SIGNAL)
        deadline = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < deadline:
            # They come line by line.
            if are_whole(self._stderr_log.written_since(before)) or self._wait_for_end(0.02):
                break
        return self._stderr_log.since(before)

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
                self._connection.send_bytes(encode(message))
        except BlockingIOError:
            raise self._stuck("does not take what it is told") from None
        except OSError:
            raise self._dead() from None

    def _receive(
        self,
        timeout: float | None,
        take: Callable[[ToFrontEnd], object],
        *,
        ending: bool = False,
    ) -> int:
        """Wait and read; ``ending``: for the thread that ends the process, the others are woken."""
        woken = self._wake[:1] if self._wake is not None and not ending else ()
        ready = wait([self._connection, *self._watched, *woken], timeout)
        if not ending and self._is_over():
            raise _Over
        if not ready:
            return 0
        found = 0
        try:
            with interrupts_deferred():
                while found < _MOST_AT_ONCE and self._connection.poll(0):
                    message = decode_to_front_end(self._connection.recv_bytes(MOST_BYTES))
                    found += 1
                    take(message)
        except BlockingIOError:
            raise self._stuck("stopped in the middle of a message") from None
        except MessageError as error:
            self._end_now(f"{self.name} was ended: {error}")
            self._death_reported = True
            raise
        except (EOFError, OSError):
            if not found:
                raise self._dead() from None
        if not found:  # nothing to read, and still something was ready: the process has ended
            raise self._dead()
        return found

    def _end(self, deadline: float) -> None:
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

    def _stuck(self, what: str) -> _Over:
        if self._death is None:
            stacks = self.stacks()
            self._end_now(
                f"{self.name} {what} for {_STUCK_SECONDS} seconds and was ended.\n"
                f"Its stacks:\n{stacks}"
            )
        return _Over()

    def _dead(self) -> _Over:
        """Reap the process and note what became of it."""
        if self._death is None:
            self._wait_for_end(_REAP_SECONDS)
            words = self._stderr_log.tail()
            said = f"\nIt last wrote on its stderr:\n{words}" if words else ""
            self._end_now(f"{self.name} {_ending(self._exit_code())}.{said}")
        return _Over()

    def _end_now(self, why: str) -> None:
        if self._death is not None:  # a signal handler was faster
            return
        self._death = EngineDeadError(why)
        for number, seconds in (
            (signal.SIGTERM, _TERMINATE_SECONDS),
            (signal.SIGKILL, _KILL_SECONDS),
        ):
            if self._wait_for_end(0):
                break
            self._signal(number)
            self._wait_for_end(seconds)
        self._exit_code()  # reaps it
        self._close()

    def _wait_for_end(self, seconds: float) -> bool:
        """Whether the process is dead, after at most so many seconds.

        Not ``join``, which waits for the sentinel, and that a child of the core may hold open.
        """
        return not self._watched or bool(wait(self._watched[-1:], seconds))

    def _signal(self, number: int) -> None:
        """Send a signal to the process, and to no other that has its number by now."""
        with contextlib.suppress(OSError):  # it is dead
            if len(self._watched) > 1:
                signal.pidfd_send_signal(self._watched[-1], number)
            else:
                os.kill(self.pid, number)

    def _exit_code(self) -> int | None:
        """The exit code of the dead process; None if somebody else has reaped it."""
        told = self._method is WorkerMethod.FORKSERVER
        deadline = time.monotonic() + (_TOLD_SECONDS if told else _LAST_SECONDS)
        with contextlib.suppress(ValueError):  # closed by a signal handler meanwhile
            while self._process.exitcode is None and time.monotonic() < deadline:
                time.sleep(0.005)  # a fork server reaps it, and tells
            return self._process.exitcode
        return None

    def _close(self) -> None:
        """Give all descriptors back."""
        self._connection.close()
        self._stderr_log.close()
        with self._waking:
            wake, self._wake = self._wake, None
        for fd in (*self._watched[1:], *(wake or ())):
            os.close(fd)
        if self._watched:
            self._watched = []
            with contextlib.suppress(ValueError):  # alive after a kill: in the kernel's hands
                self._process.close()


def _ending(code: int | None) -> str:
    """What became of a process."""
    if code is None:
        return "does not speak any more, and what became of it is not known"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ""
    if -code == signal.SIGKILL:
        hint = ", as the system does when memory runs out (see dmesg), or somebody with kill -9"
    return f"was killed by {name}{hint}"


def _limit_waits(connection: Connection) -> None:
    """Let reading and writing in the middle of a message fail instead of waiting for ever."""
    limit = struct.pack("ll", _STUCK_SECONDS, 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
