"""One process of an engine as the front end holds it: its pipe, whether it lives, how it ended.

An engine has one, or one for each rank. What to make of what they say is for ``core_handle``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from sample_engine.config import WorkerMethod
from sample_engine.process.core_process import CoreOrder, run_core
from sample_engine.process.launch import launch
from sample_engine.process.stderr_log import STACKS_SIGNAL, are_whole

__all__ = ["KILL_SECONDS", "STUCK_SECONDS", "RankProcess", "limit_waits"]

# A process that for so long takes no byte of a message, or does not go on with one, is stuck.
STUCK_SECONDS = 60
# What is killed dies, but a busy machine and a big process take their time.
KILL_SECONDS = 30.0
_STACKS_SECONDS = 10.0
_LAST_SECONDS = 1.0
# A fork server has to be given a processor before it can tell of a death that is known already.
_TOLD_SECONDS = 30.0


class RankProcess:
    """A process of an engine. Starting it is all that the constructor does; it waits for nothing.

    ``order.stderr_log`` and ``connection`` are this object's from then on, also where it fails.
    """

    def __init__(self, method: WorkerMethod, order: CoreOrder, connection: Connection) -> None:
        self.connection = connection
        self._method = method
        self._rank = None if order.ranks is None else order.ranks.rank
        self._stderr_log = order.stderr_log
        self._process: BaseProcess = launch(method, run_core, (order,))
        self.pid = self._process.pid or 0
        self._watched: list[int] = [self._process.sentinel]
        with contextlib.suppress(AttributeError, OSError):
            # The sentinel alone does not tell of the death if a child of the process holds it.
            self._watched.append(os.pidfd_open(self.pid))
        limit_waits(connection)

    @property
    def name(self) -> str:
        """The process, for messages."""
        what = "The engine core" if self._rank is None else f"Rank {self._rank} of the engine core"
        return f"{what} (pid {self.pid}, started by {self._method.value})"

    @property
    def watched(self) -> list[int]:
        """Descriptors that are readable once the process is dead; the best one last."""
        return self._watched

    def wait_for_end(self, seconds: float) -> bool:
        """Whether the process is dead, after at most so many seconds.

        Not ``join``, which waits for the sentinel, and that a child of the core may hold open.
        """
        watched = self._watched
        return not watched or bool(wait(watched[-1:], seconds))

    def is_stopped(self) -> bool:
        """Whether a signal has stopped the process, so that it does nothing until it is resumed."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
        return False

    def exit_code(self) -> int | None:
        """The exit code of the dead process; None if somebody else has reaped it."""
        told = self._method is WorkerMethod.FORKSERVER
        deadline = time.monotonic() + (_TOLD_SECONDS if told else _LAST_SECONDS)
        with contextlib.suppress(ValueError):  # closed by a signal handler meanwhile
            while self._process.exitcode is None and time.monotonic() < deadline:
                time.sleep(0.005)  # a fork server reaps it, and tells
            return self._process.exitcode
        return None

    def send_signal(self, number: int) -> None:
        """Send the process a signal, and no other that has its number by now."""
        watched = self._watched
        with contextlib.suppress(OSError):  # it is dead
            if len(watched) > 1:
                signal.pidfd_send_signal(watched[-1], number)
            elif watched:
                os.kill(self.pid, number)

    def last_words(self) -> str:
        """What the process last wrote on its stderr; "" for nothing."""
        return self._stderr_log.tail()

    def stacks(self) -> str:
        """Make the process write what its threads do, and return it; "" if it does not."""
        before = self._stderr_log.size()
        self.send_signal(STACKS_SIGNAL)
        deadline = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < deadline:
            # They come line by line.
            if are_whole(self._stderr_log.written_since(before)) or self.wait_for_end(0.02):
                break
        return self._stderr_log.since(before)

    def close(self) -> None:
        """Give all descriptors back; twice does no harm."""
        self.connection.close()
        self._stderr_log.close()
        watched, self._watched = self._watched, []
        for fd in watched[1:]:
            os.close(fd)
        if watched:
            with contextlib.suppress(ValueError):  # alive after a kill: in the kernel's hands
                self._process.close()


def limit_waits(connection: Connection) -> None:
    """Let reading and writing in the middle of a message fail instead of waiting for ever."""
    limit = struct.pack("ll", STUCK_SECONDS, 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
