"""Tests of what an isolated test finds where its body runs in this process."""

from __future__ import annotations

import os
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
