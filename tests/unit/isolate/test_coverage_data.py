"""Tests of coverage data that travels from children."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.isolate.coverage_data import Basket, begin, current, settings
from pytest_cudafork.process.protocol import frames

CONTEXTS = st.sampled_from(["", "test_a|run", "snö"])


NAMES = st.sampled_from(["/a.py", "/b c.py", "/ö.py"])


LINES = st.lists(st.integers(0, 1 << 40), max_size=5)


ARCS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=5)


STEPS = st.lists(st.tuples(CONTEXTS, NAMES, LINES, ARCS), max_size=8)


@given(STEPS)
def test_what_a_basket_gives_fills_another_across_processes(steps: list[Any]) -> None:
    first, second = Basket(), Basket()
    for context, name, lines, arcs in steps:
        first.set_context(context)
        first.add_lines({name: lines})
        first.add_arcs({name: arcs})
    expected = (dict(first.lines), dict(first.arcs))
    data = first.take()
    assert first.take() is None
    if data is not None:
        second.set_context("before")
        second.add(frames.loads(frames.dumps(data)))
        assert second.set_context(None) == "before"
    assert (second.lines, second.arcs) == expected


@pytest.mark.parametrize("data", [{}, {"lines": [[1]], "arcs": []}, {"lines": 3, "arcs": []}])
def test_a_basket_refuses_what_is_no_data(data: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Basket().add(data)


def test_nothing_is_measured_where_coverage_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "coverage", raising=False)
    assert current() is None
    assert settings() is None
    assert begin(None) is None
