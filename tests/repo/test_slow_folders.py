"""The table of the slowest folders at the end of a session."""

from __future__ import annotations

import pytest

from tests.support.slow_folders import table


def report(nodeid: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, "call", duration=seconds)


def test_the_slowest_folder_comes_first() -> None:
    reports = [
        report("tests/unit/test_a.py::test_a", 1.0),
        report("tests/unit/test_a.py::test_a", 0.5),
        report("tests/unit/test_b.py::test_a[x/y]", 0.25),
        report("tests/sessions/isolate/test_a.py::test_a", 30.0),
    ]
    assert table(reports) == [
        "   30.0 s     1 tests  tests/sessions/isolate",
        "    1.8 s     2 tests  tests/unit",
    ]


def test_one_folder_needs_no_table() -> None:
    assert table([report("tests/unit/test_a.py::test_a", 1.0)]) == []
    assert table([]) == []
