"""Tests of the parts behind equal reports that need no process."""

from __future__ import annotations

import io
from typing import Any

import pytest
from _pytest._io import TerminalWriter
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.isolate import live_text
from pytest_cudafork.isolate.child import plugins
from pytest_cudafork.isolate.coverage_data import Basket, begin, current, settings
from pytest_cudafork.isolate.report_data import Shown
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


def test_a_representation_is_written_with_the_colors_of_the_terminal() -> None:
    shown = Shown("plain\n", "\x1b[31mplain\x1b[0m\n")
    for marked, text in ((False, "plain\n"), (True, "\x1b[31mplain\x1b[0m\n")):
        file = io.StringIO()
        writer = TerminalWriter(file)
        writer.hasmarkup = marked
        shown.toterminal(writer)
        assert file.getvalue() == text
    assert str(shown) == "plain"


@given(st.text(max_size=20))
def test_a_stand_in_has_no_hooks_of_its_own(name: str) -> None:
    class Reporter:
        value = 1

        def pytest_runtest_logreport(self, report: object) -> None:
            raise AssertionError(report)

    stand_in = live_text.StandIn(Reporter())
    assert not [one for one in dir(stand_in) if one.startswith("pytest_")]
    stand_in.value = name
    assert stand_in._reporter.value == name


@pytest.mark.parametrize("runs", [0, 2])
def test_reruns_go_on_where_the_parent_stands(runs: int) -> None:
    class Counts:
        _suite_rerun_count = 1

        def get_test_failures(self, name: str) -> int:
            return 0

    class Config:
        failures_db = Counts()

    config: Any = Config()
    plugins.continue_reruns(config, {"runs": runs, "session": 5})
    assert config.failures_db.get_test_failures("x") == runs
    assert config.failures_db._suite_rerun_count == 5
    plugins.continue_reruns(config, None)
