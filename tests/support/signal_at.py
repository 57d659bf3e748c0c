"""A signal at a chosen place of the code under test, for all places one after the other."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import Any


class SignalAt:
    """Sends a signal to this process in the block, when functions were called so many times.

    Python runs handlers of signals when a function of Python begins, and when one of C has
    returned, among others; those are counted. ``sent`` says whether there were as many.

    The garbage collector waits meanwhile. What it calls, as the callback that hypothesis has left
    with it, is no code under test, and an exception that a handler raises there is lost.
    """

    def __init__(self, number: int, which: signal.Signals) -> None:
        self._left = number
        self._which = which
        self._collects = True
        self.sent = False

    def __enter__(self) -> SignalAt:
        """Count from now on."""
        self._collects = gc.isenabled()
        gc.disable()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *exception: object) -> None:
        """Count no longer."""
        sys.setprofile(None)
        if self._collects:
            gc.enable()

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        # what this class calls itself does not count
        if self.sent or event not in ("call", "c_return") or frame.f_code in _OWN:
            return
        if _NOT_IN_GENERATORS and event == "call" and frame.f_lasti >= 0:
            return
        self._left -= 1
        if self._left == 0:
            self.sent = True
            signal.raise_signal(self._which)


_NOT_IN_GENERATORS = sys.version_info < (3, 11)
"""What a profiler raises where a generator goes on ends that there, without its ``finally``: a
handler of a signal runs a moment later, within the ``try``."""
_OWN = (SignalAt.__enter__.__code__, SignalAt.__exit__.__code__)
