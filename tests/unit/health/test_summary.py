"""Tests of the terminal's section on the GPU's health."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.health import fitness, words
from pytest_cudafork.health.summary import HealthSummary

SICK = {"found": "it broke", "last_healthy": "t.py::a"}


def report(nodeid: str, **attributes: Any) -> Any:
    """A report of a set-up."""
    return SimpleNamespace(nodeid=nodeid, when="setup", **attributes)


def lines_of(summary: HealthSummary) -> list[str]:
    """What the summary writes."""
    written: list[str] = []
    section: Any = lambda name: written.append(f"== {name}")  # noqa: E731
    reporter: Any = SimpleNamespace(section=section, write_line=written.append)
    summary.pytest_terminal_summary(reporter)
    return written


def test_nothing_is_said_of_a_healthy_session() -> None:
    summary = HealthSummary()
    summary.pytest_runtest_logreport(report("t.py::a"))
    summary.pytest_runtest_logreport(report("t.py::b", cuda_health="not ours"))
    assert lines_of(summary) == []


def test_a_test_that_another_plugin_begins_again_is_counted_once() -> None:
    summary = HealthSummary()
    summary.pytest_runtest_logreport(report("t.py::b", cuda_health={words.SICK: SICK}))
    for nodeid in ("t.py::b", "t.py::b", "t.py::c", "t.py::c"):
        told = {words.NOT_RUN: "t.py::b"}
        summary.pytest_runtest_logreport(report(nodeid, cuda_health=told))
        summary.pytest_runtest_logreport(report(nodeid, isolated_since="t.py::b"))
    assert lines_of(summary)[3:] == [
        "    1 test after it was not run: its process was broken",
        "    1 test after it ran in a fresh process",
    ]


@pytest.mark.parametrize(
    ("count", "not_run", "elsewhere"),
    [
        (1, "1 test after it was not run: its process was broken", "1 test after it ran"),
        (3, "3 tests after it were not run: their process was broken", "3 tests after it ran"),
    ],
)
def test_the_first_sick_test_is_named_and_those_after_it_are_counted(
    count: int, not_run: str, elsewhere: str
) -> None:
    summary = HealthSummary()
    summary.pytest_runtest_logreport(report("t.py::b", cuda_health={words.SICK: SICK}))
    for number in range(count):
        told = {words.NOT_RUN: "t.py::b"}
        summary.pytest_runtest_logreport(report(f"t.py::c{number}", cuda_health=told))
        summary.pytest_runtest_logreport(report(f"t.py::d{number}", isolated_since="t.py::b"))
    assert lines_of(summary) == [
        f"== {words.SECTION}",
        "last healthy: t.py::a, first sick: t.py::b",
        "    it broke",
        f"    {not_run}",
        f"    {elsewhere} in a fresh process",
    ]


def test_the_largest_rests_of_memory_are_listed() -> None:
    summary = HealthSummary()
    for number in range(12):
        told = {words.KEPT: (number + 1) << 20}
        summary.pytest_runtest_logreport(report(f"t.py::k{number}", cuda_health=told))
    lines = lines_of(summary)
    assert lines[2].split() == ["12.0", "MiB", "t.py::k11"]
    assert lines[-2] == "    and 2 tests more"


@pytest.mark.parametrize("what", ["sick", "not_run", "unfit", "nothing"])
@pytest.mark.parametrize("status", [0, 5, 2])
def test_no_session_is_green_that_was_sick(
    pytester: pytest.Pytester, what: str, status: int
) -> None:
    summary, config = HealthSummary(), pytester.parseconfig()
    if what == "unfit":
        fitness.declare_unfit(config, "t.py::b", "it is broken", recover=True)
    elif what != "nothing":
        told = {what: SICK if what == words.SICK else "t.py::b"}
        summary.pytest_runtest_logreport(report("t.py::b", cuda_health=told))
    session: Any = SimpleNamespace(config=config, exitstatus=status)
    summary.pytest_sessionfinish(session)
    assert session.exitstatus == (1 if status in (0, 5) and what != "nothing" else status)
