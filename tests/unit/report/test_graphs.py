"""The lines on checks of graphs that passed with a remark: one for each remark, not too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_cudafork.capture.story.remarks import PROPERTY
from pytest_cudafork.report.graphs import remark_lines


def report(nodeid: str, *remarks: str) -> Any:
    properties = [("other", 1), *((PROPERTY, text) for text in remarks)]
    return SimpleNamespace(nodeid=nodeid, user_properties=properties)


def test_a_remark_is_one_line_with_the_tests_it_is_about() -> None:
    reports = [report("t.py::a", "a\n  note"), report("t.py::b", "a note"), report("t.py::c")]
    assert remark_lines(reports) == ["graphs: t.py::a and 1 more: a note"]
    assert remark_lines(reports, verbose=True) == ["graphs: t.py::a, t.py::b: a note"]


def test_many_remarks_are_cut() -> None:
    reports = [report("t.py::a", *(f"note {number}" for number in range(13)))]
    lines = remark_lines(reports)
    assert len(lines) == 11
    assert lines[-1] == "graphs: and 3 more remarks (-v shows them)"
    assert len(remark_lines(reports, verbose=True)) == 13
