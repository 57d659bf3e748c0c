"""Places in the traceback of an exception, for which the standard library would read sources.

A test may have replaced what reads them, and it may have replaced ``traceback``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


def innermost(
    traceback: TracebackType | None, wanted: Callable[[str], bool] = lambda filename: True
) -> tuple[str, int] | None:
    """Return the file and line of the innermost frame whose file is wanted; None if none is."""
    found = None
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if wanted(filename):
            found = filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def without_outer(
    traceback: TracebackType | None, ours: Callable[[str], bool]
) -> TracebackType | None:
    """Return a traceback without the outermost frames, as long as their files are ours."""
    while traceback is not None and ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback
