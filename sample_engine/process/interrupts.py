"""Work that Ctrl-C must not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["interrupts_deferred"]


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back a SIGINT until the block has ended; a second one gets through at once.

    Half a message that is read, or half a step that is computed, cannot be taken up again: who
    catches the ``KeyboardInterrupt``, as a notebook does, goes on with a broken engine. Python
    delivers signals to the main thread alone; in others there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGINT)
    # Ignored, or handled outside of Python; or held back already, by a block around this one.
    if not callable(before) or isinstance(before, _Holder):
        yield
        return
    holder = _Holder(before)
    try:
        signal.signal(signal.SIGINT, holder)
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, before)
        except BaseException:  # by the handler of another signal, or by a second SIGINT
            signal.signal(signal.SIGINT, before)
            raise
        finally:
            if len(holder.caught) == 1:
                before(*holder.caught[0])


class _Holder:
    """The handler that holds the first signal back and gives the second to the one before it."""

    def __init__(self, before: Any) -> None:
        self._before = before
        self.caught: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.caught.append((number, frame))
        if len(self.caught) > 1:
            self._before(number, frame)
