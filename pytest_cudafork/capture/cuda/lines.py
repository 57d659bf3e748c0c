"""Owns which line of a stack is the user's: the innermost outside torch and its like.

It does not know why a line is asked for.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

from pytest_cudafork.observe.render import short_path
from pytest_cudafork.observe.touch import CUDA_LIBRARIES, MACHINERY, Frame

_FOREIGN = CUDA_LIBRARIES | MACHINERY | {"<stdlib>"}
_HERE = __file__.rpartition("capture")[0]
# Where Triton and Inductor time candidates. What runs there is no work of the function.
_TUNERS = ("triton/testing.py", "torch/_inductor/runtime/benchmarking.py")


class Line(NamedTuple):
    """A line of user code."""

    where: str  # file:line; "" if the stack holds none
    tuning: bool = False  # an autotuner runs a candidate there


@functools.lru_cache(maxsize=8192)
def is_foreign(code: CodeType) -> bool:
    """Whether code is a library's or our own, and so never the line a user can change."""
    name = code.co_filename
    return name.startswith(("<", _HERE)) or Frame(name, 1, code.co_name).package in _FOREIGN


@functools.lru_cache(maxsize=8192)
def _is_tuner(code: CodeType) -> bool:
    return code.co_filename.replace("\\", "/").endswith(_TUNERS)


def line_of(frame: FrameType | None) -> Line:
    """The user's line in a running stack, from its innermost frame on."""
    tuning = False
    while frame is not None:
        if not is_foreign(frame.f_code):
            return Line(place(frame.f_code.co_filename, frame.f_lineno), tuning)
        tuning = tuning or _is_tuner(frame.f_code)
        frame = frame.f_back
    return Line("", tuning)


def line_in_thread(thread: int) -> Line:
    """The line at which another thread is, for work that torch does on its behalf."""
    return line_of(sys._current_frames().get(thread))


def line_of_traceback(traceback: TracebackType | None) -> str:
    """The user's innermost line in an exception's traceback; "" if there is none."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_foreign(code):
            found = place(code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def place(filename: str, line: int) -> str:
    """``file:line`` as it is shown."""
    return f"{short_path(filename)}:{line}"
