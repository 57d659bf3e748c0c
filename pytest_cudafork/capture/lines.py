"""Owns which line of a stack is the user's: the innermost outside torch, the plugin and their like.

It does not know why a line is asked for. It is asked once for each recorded operation, so what it
learns about a file is kept.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType, TracebackType

from pytest_cudafork.observe.render import short_path
from pytest_cudafork.observe.touch import CUDA_LIBRARIES, MACHINERY, Frame

__all__ = [
    "file_and_line",
    "is_foreign",
    "line_at_work",
    "line_in_thread",
    "line_of",
    "line_of_traceback",
    "place",
]

_FOREIGN = CUDA_LIBRARIES | MACHINERY | {"<stdlib>", "numpy"}
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Code without a file is generated, by dataclasses or torch, unless somebody typed it in.
_TYPED_IN = ("<doctest ", "<ipython-input-", "<stdin>")
_FROM_SOURCE = ("torch", "triton", "numpy")  # may lie in a checkout, with no site-packages above


def is_foreign(filename: str) -> bool:
    """Whether code is a library's or our own, and so never the line a user can change."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED_IN)
    return _is_foreign_file(filename)


@functools.lru_cache(maxsize=8192)
def _is_foreign_file(filename: str) -> bool:
    if filename.startswith(_HERE) or Frame(filename, 1, "").package in _FOREIGN:
        return True
    return filename.startswith(tuple(_roots()))


def _roots() -> list[str]:
    """Where libraries lie that are loaded: whose code runs is."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _FROM_SOURCE)
    return [os.path.dirname(file) + os.sep for file in files if file]


def file_and_line(frame: FrameType | None) -> tuple[str, int] | None:
    """The user's line in a running stack, from its innermost frame on; None if it holds none."""
    while frame is not None:
        if not is_foreign(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno or 0
        frame = frame.f_back
    return None


def line_of(frame: FrameType | None) -> str:
    """The same as ``file:line``, as it is shown; "" if there is none."""
    found = file_and_line(frame)
    return place(*found) if found else ""


def line_at_work() -> str:
    """The line at which the calling thread is."""
    return line_of(sys._getframe(1))


def line_in_thread(thread: int) -> str:
    """The line at which another thread is, for work that torch does on its behalf."""
    return line_of(sys._current_frames().get(thread))


def line_of_traceback(traceback: TracebackType | None) -> str:
    """The user's innermost line in an exception's traceback; "" if there is none."""
    found = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not is_foreign(filename):
            found = place(filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def place(filename: str, line: int) -> str:
    """``file:line`` as it is shown."""
    return f"{_shown(filename, _directory())}:{line}"


_shown = functools.lru_cache(maxsize=8192)(short_path)


def _directory() -> str:
    """What paths are told relative to; "" where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
