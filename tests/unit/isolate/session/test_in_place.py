"""Tests of what an isolated test finds where its body runs in this process."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest

from pytest_cudafork.isolate.session.in_place import InPlace
from tests.unit.isolate.session import items_of

SOURCE = """
import os, pytest
from pytest_cudafork import isolated

@isolated(method="spawn", env={"CUDAFORK_TEST_OF": "env"})
def test_decorated(): return os.getpid()
def test_plain(): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> dict[str, Any]:
    return {item.name: item for item in items_of(pytester, SOURCE)}


@pytest.mark.parametrize("here", [True, False])
def test_variables_are_there_as_long_as_the_test_runs_here(
    items: dict[str, Any], here: bool
) -> None:
    wrapper = InPlace(lambda item: here).pytest_runtest_protocol(items["test_decorated"])
    next(wrapper)
    assert (os.environ.get("CUDAFORK_TEST_OF") == "env") is here
    with pytest.raises(StopIteration) as end:
        wrapper.send("result")
    assert end.value.value == "result"
    assert "CUDAFORK_TEST_OF" not in os.environ


def test_a_decorated_test_runs_in_place_in_its_call(items: dict[str, Any]) -> None:
    item = items["test_decorated"]
    wrapper = InPlace(lambda item: True).pytest_runtest_call(item)
    next(wrapper)
    assert item.obj() == os.getpid()
    with pytest.raises(StopIteration):
        wrapper.send(None)


def test_other_tests_are_left_alone(items: dict[str, Any]) -> None:
    plugin = InPlace(lambda item: True)
    for hook in (plugin.pytest_runtest_protocol, plugin.pytest_runtest_call):
        wrapper = hook(items["test_plain"])
        next(wrapper)
        with pytest.raises(StopIteration):
            wrapper.send(None)


@pytest.mark.parametrize(
    ("line", "in_vain"),
    [
        ("@isolated\nclass Odd: pass", True),
        ("class Odd: pytestmark = pytest.mark.cuda_isolated", True),
        ("class Odd: pytestmark = pytest.mark.skip", False),
        ("class Odd: pytestmark = 3", False),
        ("class Odd: pass", False),
        ("@isolated\nclass Odd: __test__ = False", False),
        ("@isolated\nclass Odd: pass\nclass Derived(Odd): pass", False),
        ("@isolated\nclass Odd: pass\nTestOdd = Odd", False),
        ("class Test:\n    @isolated\n    class Odd: pass\nOdd = 3", False),
    ],
)
def test_a_class_may_be_marked_in_vain(
    line: str, in_vain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Collector:
        """Keeps the warnings."""

        def __init__(self) -> None:
            self.told: list[Warning] = []
            self.warn = self.told.append

    module = types.ModuleType("marked_in_vain")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(f"import pytest\nfrom pytest_cudafork import isolated\n{line}", vars(module))
    hook: Any = InPlace(lambda item: True).pytest_pycollect_makeitem
    for made in (None, "collected"):
        collector = Collector()
        wrapper = hook(collector, "Odd", vars(module)["Odd"])
        next(wrapper)
        with pytest.raises(StopIteration) as end:
            wrapper.send(made)
        assert end.value.value is made
        assert len(collector.told) == (in_vain and made is None)
        assert all("the class Odd is marked" in str(one) for one in collector.told)
