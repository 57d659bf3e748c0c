"""Places in the traceback of an exception."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from pytest_cudafork.compat.tracebacks import innermost, without_outer

STEP = "def step(further):\n    further()\n"


def fail() -> None:
    raise ZeroDivisionError


def raised_through(*files: str) -> TracebackType | None:
    """Return the traceback of an error that went through frames in these files, outermost first."""
    call: Callable[[], None] = fail
    for file in reversed(files):
        made: dict[str, Any] = {}
        exec(compile(STEP, file, "exec"), made)
        call = functools.partial(made["step"], call)
    with pytest.raises(ZeroDivisionError) as raised:
        call()
    return raised.tb.tb_next


def test_the_innermost_place_is_that_of_a_wanted_file() -> None:
    found = raised_through("a.py", "b.py", "a.py", "c.py")
    assert innermost(found) == (__file__, fail.__code__.co_firstlineno + 1)
    assert innermost(found, lambda file: file in ("a.py", "b.py")) == ("a.py", 2)
    assert innermost(found, lambda file: file == "b.py") == ("b.py", 2)
    assert innermost(found, lambda file: False) is None
    assert innermost(None) is None


def test_outer_frames_of_ours_are_left_out_and_inner_ones_stay() -> None:
    left = without_outer(raised_through("us.py", "us.py", "user.py", "us.py"), "us.py".__eq__)
    assert left is not None
    assert left.tb_frame.f_code.co_filename == "user.py"
    assert innermost(left, "us.py".__eq__) == ("us.py", 2)
    assert without_outer(left, lambda file: True) is None
    assert without_outer(None, lambda file: True) is None
