"""Stacks in the form that the ledger holds."""

from __future__ import annotations

import inspect
import json
import sys
from types import FrameType

from pytest_cudafork.observe.base.stacks import MOST_FRAMES, outward, stack_of


def test_the_innermost_frame_comes_first_with_its_place_and_flags() -> None:
    def inner() -> FrameType:
        return sys._getframe()

    frame = inner()
    first, second = stack_of(frame)[:2]
    assert first[:2] == (__file__, frame.f_lineno)
    assert first[2].endswith("inner")
    assert first[3] & inspect.CO_OPTIMIZED
    assert second[2].endswith("test_the_innermost_frame_comes_first_with_its_place_and_flags")


def test_a_class_body_has_no_optimized_flag() -> None:
    class Body:
        frame = sys._getframe()

    assert not stack_of(Body.frame)[0][3] & inspect.CO_OPTIMIZED


def test_an_endless_recursion_is_cut_off() -> None:
    def deep(left: int) -> FrameType:
        return deep(left - 1) if left else sys._getframe()

    assert len(stack_of(deep(MOST_FRAMES))) == MOST_FRAMES


def test_no_frame_is_no_stack_and_a_stack_is_plain_data() -> None:
    assert stack_of(None) == []
    stack = stack_of(sys._getframe())
    assert json.loads(json.dumps(stack)) == [list(item) for item in stack]


def test_a_frame_is_followed_by_its_callers_to_the_outermost() -> None:
    frame = sys._getframe()
    found = list(outward(frame))
    assert found[0] is frame
    assert found[1] is frame.f_back
    assert found[-1].f_back is None
    assert list(outward(None)) == []
