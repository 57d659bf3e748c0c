"""Raises an error in the main thread, also while that waits for a lock, a child or a file.

Only a signal reaches a thread that waits, and only the main thread runs Python's handlers of
signals. So a real-time signal that nobody uses is taken for as long as a watch lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from pytest_cudafork.compat.unpatched import contextlib, signal, threading

MakeError = Callable[["FrameType | None"], "BaseException | None"]
"""Called in the main thread with the frame that was interrupted; None raises nothing."""


class MainThread:
    """The main thread of this process, between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self._number = 0
        self._make: MakeError | None = None

    def begin(self) -> None:
        """Take a signal; called in another thread, which may not, nothing will be raised."""
        if threading.current_thread() is not threading.main_thread():
            return
        # The ones below are looked through by the witness in the driver, for faulthandler.
        for number in (signal.SIGRTMAX - 1, signal.SIGRTMAX):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)
                self._number = number
                return

    def end(self) -> None:
        """Give the signal back, unless somebody else has taken it meanwhile."""
        number, self._number = self._number, 0
        # In another thread nothing can be given back, and a handler without an error does nothing.
        with contextlib.suppress(ValueError):
            if number and signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL)

    def interrupt(self, make: MakeError) -> None:
        """Raise what ``make`` returns in the main thread, as soon as that runs Python code."""
        ident = threading.main_thread().ident
        if self._number and ident is not None:
            self._make = make
            signal.pthread_kill(ident, self._number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        make, self._make = self._make, None
        error = make(frame) if make is not None else None
        if error is not None:
            raise error
