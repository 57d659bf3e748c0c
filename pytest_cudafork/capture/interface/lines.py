"""Finds the user's line in a stack: the innermost outside torch, the plugin and their like.

It is asked once for each recorded operation, so what it learns about code is kept. Places are
``file:line`` with the file as Python knows it; ``shown`` makes them short.
"""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType, FrameType, TracebackType

from pytest_cudafork.compat import tracebacks
from pytest_cudafork.observe.base.stacks import frames_of_threads
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.touch import CUDA_LIBRARIES, MACHINERY, Frame

_FOREIGN = CUDA_LIBRARIES | MACHINERY | {"<stdlib>", "numpy"}
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# Code without a file is generated, by dataclasses or torch, unless somebody typed it in.
_TYPED_IN = ("<doctest ", "<ipython-input-", "<python-input-", "<stdin>")
_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__")
_HANDLERS = ("__torch_function__", "__torch_dispatch__")
_MOST_CODE = 8192
_FROM_SOURCE = ("torch", "triton", "numpy")  # may lie in a checkout, with no site-packages above


@functools.lru_cache(maxsize=8192)
def is_foreign(filename: str) -> bool:
    """Whether code is a library's, our own or generated, and so no line that a user can change."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED_IN)
    return _is_foreign_file(filename)


def is_library(filename: str) -> bool:
    """The same, but for code that may be the user's though it has no file: ``exec`` makes such."""
    if filename.startswith("<"):
        return filename.startswith(_GENERATED)
    return _is_foreign_file(filename)


def _is_foreign_file(filename: str) -> bool:
    if filename.startswith(_HERE) or Frame(filename, 1, "").package in _FOREIGN:
        return True
    return filename.startswith(tuple(_roots()))


def _roots() -> list[str]:
    """Where libraries lie that are loaded: whose code runs is."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _FROM_SOURCE)
    return [os.path.dirname(file) + os.sep for file in files if file]


# By identity, as code objects are slow to hash, and equal functions of two files are equal code.
_KNOWN: dict[int, tuple[CodeType, dict[int, str] | None]] = {}


def line_of(frame: FrameType | None) -> str:
    """The user's line in a running stack, from its innermost frame on; "" if it holds none.

    All operators of a subclass of tensors, or under a mode, pass its handler: the line is the one
    that calls the operator, if there is one.
    """
    of_handler = ""
    while frame is not None:
        code = frame.f_code
        known = _KNOWN.get(id(code))
        if known is None:
            if len(_KNOWN) >= _MOST_CODE:
                _KNOWN.clear()
            known = _KNOWN[id(code)] = code, None if is_foreign(code.co_filename) else {}
        places = known[1]
        if places is not None:
            at = frame.f_lasti
            if at not in places:
                places[at] = _place_in(code, at)
            if code.co_name not in _HANDLERS:
                return places[at]
            of_handler = of_handler or places[at]
        frame = frame.f_back
    return of_handler


def _place_in(code: CodeType, at: int) -> str:
    """Return the place of an instruction; a frame would decode the table of its lines each time."""
    lines = (line for first, end, line in code.co_lines() if first <= at < end and line)
    return place(code.co_filename, next(lines, code.co_firstlineno))


def line_at_work() -> str:
    """The line at which the calling thread is."""
    return line_of(sys._getframe(1))


def line_in_thread(thread: int) -> str:
    """The line at which another thread is, for work that torch does on its behalf."""
    return line_of(frames_of_threads().get(thread))


def line_of_traceback(traceback: TracebackType | None) -> str:
    """The user's innermost line in an exception's traceback; "" if there is none."""
    found = tracebacks.innermost(traceback, lambda filename: not is_foreign(filename))
    return place(*found) if found is not None else ""


def place(filename: str, line: int) -> str:
    """``file:line``."""
    return f"{filename}:{line}"


def shown(where: str) -> str:
    """Places, with commas between them, as a reader wants them: see ``short_path``."""
    return ", ".join(_shown(one) for one in where.split(", "))


def _shown(where: str) -> str:
    filename, _, line = where.rpartition(":")
    return f"{short_path(filename)}:{line}" if filename else where
