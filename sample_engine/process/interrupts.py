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
    if not callable(before):  # ignored, or handled outside of Python
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        caught.append((number, frame))
        if len(caught) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if len(caught) == 1:
            before(*caught[0])
