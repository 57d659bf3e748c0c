"""Remarks of graph checks that passed are in the terminal, from whatever process they come."""

from __future__ import annotations

import pytest

from tests.support.sessions import needs_torch, run_session

pytestmark = needs_torch

TESTS = """
import torch
from pytest_cudafork import assert_replay_equals_eager

def check():
    fn = lambda x: x.mul_(2) + 1
    assert_replay_equals_eager(fn, [torch.ones(2)], backend="software")

def test_one():
    check()

def test_two():
    check()

def test_without():
    assert_replay_equals_eager(lambda x: x * 2, [torch.ones(2)], backend="software")
"""


@pytest.mark.parametrize("options", [(), ("--cuda-fork-isolate=fork",)])
def test_a_remark_is_shown_in_one_line(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(TESTS)
    result = run_session(pytester, *options)
    result.assert_outcomes(passed=3)
    lines = [line for line in result.stdout.lines if line.startswith("graphs: ")]
    assert lines == [
        "graphs: test_a_remark_is_shown_in_one_line.py::test_one and 1 more: a replay changes "
        "inputs[0] in place: fill it anew before the next one"
    ]
