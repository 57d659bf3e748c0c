"""Owns the watch over one running child: its messages, its time limit, its end, its descendants.

Runs in the parent; it does not know what the messages mean or what the child was started for.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_cudafork.isolate import launch, wire

_READ_BYTES = 1 << 18
_MOST_FDS = 2
_STACKS_SECONDS = 3.0
"""How long a child that is told to abort may take to write its stacks."""
EXIT_SECONDS = 10.0
"""How long a child may take to end after its last message."""
_LOOK_SECONDS = 0.02
"""How often to look at a child without a pidfd."""
_LONGEST_WAIT_SECONDS = 3600.0
"""What one wait may take: poll counts milliseconds in a C int, and a limit may be infinite."""

OnMessage = Callable[[wire.Message, "list[int]"], bool]
"""Takes a message and the descriptors that came with it, to close; True: it is the last."""


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    ``exitcode`` is negative for a signal; ``timed_out`` and ``lingered`` (it did not end after its
    last message) mean that it was killed for that; ``malformed`` says what was wrong with what it
    sent, or is ""; ``stacks`` is what faulthandler wrote.
    """

    exitcode: int
    timed_out: bool
    lingered: bool
    finished: bool
    malformed: str
    stacks: str
    seconds: float


class Supervisor:
    """Watches one child to its end; afterwards nothing of it is left."""

    def __init__(
        self, running: launch.Running, timeout: float | None, on_message: OnMessage
    ) -> None:
        self._running = running
        self._timeout = timeout
        self._on_message = on_message
        self._decoder = wire.Decoder()
        self._finished = False
        self._malformed = ""
        self._hung_up = False
        self._relatives: list[int] = []
        self._start = time.monotonic()

    def watch(self) -> Ending:
        """Wait for the child's end and return how it was.

        Whatever ends this early (KeyboardInterrupt, an exception of ``on_message``), the child and
        its group are killed and reaped first.
        """
        timed_out = lingered = False
        try:
            deadline = None if self._timeout is None else self._start + self._timeout
            if not self._until_dead(deadline):
                lingered = self._finished
                timed_out = not (lingered or self._malformed)
                self._abort()
            self._drain()
        finally:
            exitcode = self._clean_up()
        seconds = time.monotonic() - self._start
        return Ending(
            exitcode,
            timed_out,
            lingered,
            self._finished,
            self._malformed,
            self._stacks,
            seconds,
        )

    def _until_dead(self, deadline: float | None) -> bool:
        """Take messages until the child is dead; False when the deadline comes first."""
        finished_before = self._finished
        while True:
            if self._finished and not finished_before:
                finished_before = True
                deadline = time.monotonic() + EXIT_SECONDS
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return self._dead()
            if self._wait(left):
                return True
            if self._malformed:
                return False

    def _wait(self, seconds: float | None) -> bool:
        """Wait for a message or the end, take what came; True when the child is dead."""
        running = self._running
        poller = select.poll()
        if not self._hung_up:
            poller.register(running.sock, select.POLLIN)
        if running.pidfd >= 0:
            poller.register(running.pidfd, select.POLLIN)
        elif seconds is None or seconds > _LOOK_SECONDS:
            seconds = _LOOK_SECONDS
        if seconds is not None:
            seconds = min(seconds, _LONGEST_WAIT_SECONDS)
        # rounded up, or the last millisecond would be spent in a busy loop
        ready = dict(poller.poll(None if seconds is None else int(seconds * 1000) + 1))
        if running.sock.fileno() in ready:
            self._receive()
        return running.pidfd in ready if running.pidfd >= 0 else self._dead()

    def _dead(self) -> bool:
        """Whether the child has ended (it is still a zombie, for nobody has reaped it)."""
        try:
            with open(f"/proc/{self._running.pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            return True
        return state in (b"Z", b"X")

    def _receive(self, flags: int = 0) -> bool:
        """Read once and handle the messages; False when there is nothing more to read."""
        fds: list[int] = []
        try:
            data, fds = _receive_fds(self._running.sock, flags)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._hung_up = True
            return False
        try:
            for message in self._decoder.feed(data):
                taken, fds = fds, []
                self._finished = self._on_message(message, taken) or self._finished
        except wire.WireError as error:
            self._malformed = str(error)
            self._hung_up = True
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _drain(self) -> None:
        """Take what the dead child has sent, but wait for nothing: descendants may hold its end."""
        while not self._hung_up and self._receive(socket.MSG_DONTWAIT):
            pass
        if self._decoder.pending and not self._malformed:
            self._malformed = f"the last message is cut off after {self._decoder.pending} bytes"

    def _abort(self) -> None:
        """Let the child write its stacks and die of it; else kill it."""
        import resource

        pid = self._running.pid
        self._relatives = descendants(pid)
        if not self._malformed:
            with contextlib.suppress(OSError, ValueError):  # a core file would only take time
                _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGABRT)
            deadline = time.monotonic() + _STACKS_SECONDS
            while time.monotonic() < deadline:
                if self._wait(deadline - time.monotonic()) or self._malformed:
                    break

    def _clean_up(self) -> int:
        """Kill what is left of the child and its descendants, reap it, and close everything."""
        running = self._running
        if not self._dead():
            self._relatives = self._relatives or descendants(running.pid)
            with contextlib.suppress(OSError):
                os.kill(running.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # nobody else is in the group
            os.killpg(running.pid, signal.SIGKILL)
        for pid in self._relatives:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._until_killed()
        try:
            exitcode = running.reap()
        finally:
            self._stacks = _read_all(running.stacks_fd)
            running.close()
        return exitcode

    def _until_killed(self) -> None:
        """Wait for the end of a child that was killed; SIGKILL leaves it no choice."""
        while not self._dead():
            if self._running.pidfd >= 0:
                select.select([self._running.pidfd], [], [], 1.0)
            else:
                time.sleep(_LOOK_SECONDS)


def _receive_fds(sock: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """Read bytes and the descriptors that came with them; ``socket.recv_fds`` drops the flags."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(_MOST_FDS * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(_READ_BYTES, space, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, body in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
    return data, list(fds)


def descendants(pid: int) -> list[int]:
    """Return the process ids of all living descendants of a process, in any process group."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            tasks = os.listdir(f"/proc/{current}/task")
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{current}/task/{task}/children", encoding="ascii") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                waiting += children
    return found


def _read_all(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).decode("utf-8", "replace").strip()
