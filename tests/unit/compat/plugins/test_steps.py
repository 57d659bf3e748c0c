"""Which tests are steps of one function of pytest-steps."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_cudafork.compat.plugins import steps
from tests.unit.compat import require

SUITE = """
import pytest

@pytest.mark.parametrize("________step_name_", ["one", "two"])
@pytest.mark.parametrize("n", [1, 2])
def test_steps(n, ________step_name_): pass

@pytest.mark.parametrize("test_step", ["one", "two"])
def test_explicit(test_step): pass

@pytest.mark.parametrize("n", [1, 2])
def test_plain(n): pass

def test_more(): pass
"""


def test_steps_are_told_by_a_parameter(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = pytester.getitems(SUITE)
    monkeypatch.delitem(sys.modules, "pytest_steps", raising=False)
    assert {steps.function_of(item) for item in items} == {None}
    monkeypatch.setitem(sys.modules, "pytest_steps", ModuleType("pytest_steps"))
    found = [steps.function_of(item) for item in items]
    assert None not in found[:6]
    assert found[0] == found[1] != found[2] == found[3] != found[4] == found[5]
    assert found[6:] == [None] * 3


def test_the_name_is_there() -> None:
    steps_generator = pytest.importorskip("pytest_steps.steps_generator")
    use = "steps that share a process"
    name = require("pytest-steps", steps_generator, "GENERATOR_MODE_STEP_ARGNAME", use)
    assert name in steps._PARAMETERS
