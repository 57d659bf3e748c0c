"""Several threads that wait for messages of one connection, one of which reads for all."""

from __future__ import annotations

from collections.abc import Callable

from pytest_cudafork.compat.unpatched import threading, time


class OneReader:
    """Lets one thread at a time read.

    Of two threads that read, each may take what the other waits for; and then neither looks again.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._reader = 0
        """The thread that reads; 0: none."""

    def wait(self, has_come: Callable[[], bool], read: Callable[[], None], deadline: float) -> bool:
        """Wait until something has come; False if the thread that reads has not got it in time.

        Args:
            has_come: Whether it is there.
            read: Takes one message and notes what it says; what it raises passes.
            deadline: Until when another thread is waited for, of ``time.monotonic``.

        """
        me = threading.get_ident()
        while not has_come():
            try:
                with self._news:
                    if self._reader not in (0, me):
                        if not self._news.wait(max(0.0, deadline - time.monotonic())):
                            return has_come()
                        continue
                    if has_come():  # while the turn of another came to its end
                        break
                    self._reader = me
                read()
            finally:  # also where Ctrl-C comes between any two lines
                with self._news:
                    if self._reader == me:
                        self._reader = 0
                        self._news.notify_all()
        return True
