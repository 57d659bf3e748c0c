"""The terminal's section on captures, from reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.capture.in_tests import words
from pytest_cudafork.capture.in_tests.summary import CaptureSummary
from pytest_cudafork.capture.interface.check_names import LOOKED_AT


def report(test: str, told: object) -> pytest.TestReport:
    return cast(pytest.TestReport, SimpleNamespace(nodeid=test, **{LOOKED_AT: told}))


def suspicion(where: str) -> dict[str, Any]:
    return {"kind": "rng-frozen", "what": "it repeats", "lines": [["captured at", where]],
            "why": "", "todo": ""}  # fmt: skip


def test_suspicions_are_listed_once_and_what_was_not_judged_is_counted() -> None:
    summary = CaptureSummary()
    for test in ("t::a", "t::b", "t::a"):
        told = {"suspicions": [suspicion("a.py:1")], "judged": 10, "not_judged": {"gone": 2},
                "silenced": 1}  # fmt: skip
        summary.pytest_runtest_logreport(report(test, told))
    summary.pytest_runtest_logreport(report("t::c", None))
    lines = summary.lines(verbose=False)
    assert lines[0] == "1 suspicion, which may be meant so (they fail no test):"
    assert lines[1] == "[rng-frozen] it repeats"
    assert "    seen in t::a and 1 more" in lines
    assert any(line.startswith("not judged: 6 of 30 values") for line in lines)
    assert lines[-1] == "silenced by comments: 3"


def test_long_lists_are_cut_unless_all_is_asked_for() -> None:
    summary = CaptureSummary()
    gaps = {f"reason {number}": 1 for number in range(5)}
    found = [suspicion(f"a.py:{number}") for number in range(12)]
    told = {"suspicions": found, "judged": 9, "not_judged": gaps}
    summary.pytest_runtest_logreport(report("t::a", told))
    short, long = summary.lines(verbose=False), summary.lines(verbose=True)
    assert "and 2 more (-v shows them)" in short
    assert "    and 2 more (-v shows them)" in short
    assert not any("more (-v" in line for line in long)
    assert sum("[rng-frozen]" in line for line in long) == 12


def test_there_is_no_section_for_nothing() -> None:
    summary = CaptureSummary()
    written: list[str] = []
    terminal: Any = SimpleNamespace(section=written.append, write_line=written.append)
    config: Any = SimpleNamespace(option=SimpleNamespace(verbose=0))
    summary.pytest_terminal_summary(terminal, config)
    assert written == []
    summary.pytest_runtest_logreport(report("t::a", {"suspicions": [suspicion("a.py:1")]}))
    summary.pytest_terminal_summary(terminal, config)
    assert written[0] == words.SECTION


def test_how_much_was_looked_at_is_said_where_all_tests_are() -> None:
    summary = CaptureSummary(counts=True)
    assert summary.lines(verbose=False) == [
        "looked at: nothing, as no test that is looked at captured a graph by itself"
    ]
    summary.pytest_runtest_logreport(report("t::a", {"captures": 1, "replays": 2}))
    assert summary.lines(verbose=False) == ["looked at: 1 capture, 2 replays"]


def test_options_are_named_where_nothing_was_captured_alone() -> None:
    summary = CaptureSummary(counts=True, to_add="add --this")
    assert summary.lines(verbose=False)[1:] == ["add --this"]
    summary.pytest_runtest_logreport(report("t::a", {"captures": 1, "replays": 2}))
    assert summary.lines(verbose=False) == ["looked at: 1 capture, 2 replays"]


def test_captures_of_other_threads_are_not_looked_at() -> None:
    summary = CaptureSummary(counts=True)
    summary.pytest_runtest_logreport(report("t::a", {"elsewhere": 1}))
    assert summary.lines(verbose=False) == [
        "looked at: nothing, as no test captured a graph in its own thread",
        "not looked at: 1 capture of other threads",
    ]
    summary.pytest_runtest_logreport(report("t::b", {"captures": 2, "replays": 1, "elsewhere": 1}))
    assert summary.lines(verbose=False) == [
        "looked at: 2 captures, 1 replay",
        "not looked at: 2 captures of other threads",
    ]


def test_replays_of_other_threads_are_not_looked_at() -> None:
    summary = CaptureSummary(counts=True)
    told = {"captures": 1, "replays": 0, "replays_elsewhere": 2}
    summary.pytest_runtest_logreport(report("t::a", told))
    assert summary.lines(verbose=False) == [
        "looked at: 1 capture, 0 replays",
        "not looked at: 2 replays in other threads, or of graphs that nobody looked at when they "
        "were captured",
    ]
