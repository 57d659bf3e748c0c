"""The garbage collector kept waiting, where a test counts what Python runs or is interrupted.

The collector calls Python code in the thread that it comes upon: finalizers of what other tests
have left, and the callback that hypothesis leaves with it. A tracer counts that code too, and an
exception that a signal's handler raises in it is lost.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_waits() -> Iterator[None]:
    """Collect no garbage in the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
