"""Python stacks in the form that the ledger holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType

from pytest_cudafork.observe.base.garbage import no_collections

MOST_FRAMES = 400

StackItem = tuple[str, int, str, int]


def stack_of(frame: FrameType | None) -> list[StackItem]:
    """Return ``(filename, line, qualified name, code flags)`` of ``frame`` and all its callers.

    Innermost first, at most ``MOST_FRAMES``; import machinery is kept, because it is what tells a
    module body that is being imported from a script.
    """
    return [item_of(each) for each in islice(outward(frame), MOST_FRAMES)]


def item_of(frame: FrameType) -> StackItem:
    """Return what a stack has of one frame."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return code.co_filename, frame.f_lineno or 0, name, code.co_flags


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and all its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_threads() -> dict[int, FrameType]:
    """Return the frame at which each thread is, by what ``threading.get_ident`` returns there.

    ``sys._current_frames`` holds a lock of the interpreter. Before Python 3.12 a garbage collection
    may begin within it, and a finalizer that asks the same, or lets another thread end meanwhile,
    waits for that lock for ever (gh-106883).
    """
    with no_collections():
        return sys._current_frames()
