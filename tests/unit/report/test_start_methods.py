"""The lines on tests that named one start method and ran under another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_cudafork.report.start_methods import start_method_lines


def report(name: str, wanted: str, *ran: str) -> Any:
    """Return a report of a test that named a method and ran under others."""
    properties = [("other", 1), ("cudafork_wanted", wanted)]
    properties += [("cudafork_ran", method) for method in ran]
    properties += [("cudafork_ran_at", f"e.py:3 by {each}") for each in ran if each != wanted]
    return SimpleNamespace(nodeid=f"t.py::{name}", user_properties=properties)


def test_what_ran_as_it_was_named_is_not_told() -> None:
    reports = [report("a", "fork", "fork"), report("b", "spawn"), report("c", "spawn", "spawn")]
    assert start_method_lines(reports) == []
    assert start_method_lines([SimpleNamespace(nodeid="x", user_properties=[("a", 1)])]) == []  # type: ignore[list-item]


def test_what_ran_otherwise_is_counted_once_with_its_line() -> None:
    reports = [
        report("a", "fork", "fork", "spawn"),
        report("a", "fork", "fork", "spawn"),
        report("b", "fork", "spawn"),
        report("c", "spawn", "fork"),
    ]
    assert start_method_lines(reports) == [
        "start methods: 2 tests wanted fork and ran spawn:",
        "  t.py::a (e.py:3 by spawn)",
        "  t.py::b (e.py:3 by spawn)",
        "start methods: 1 test wanted spawn and ran fork:",
        "  t.py::c (e.py:3 by fork)",
    ]


def test_of_many_tests_the_first_are_named() -> None:
    reports = [report(f"t{n}", "fork", "spawn") for n in range(12)]
    assert start_method_lines(reports)[-1] == "  ... and 2 more (-v shows them)"
    assert len(start_method_lines(reports, verbose=True)) == 13
