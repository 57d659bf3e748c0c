"""Verdicts, their outcomes, and records as plain data."""

from __future__ import annotations

import json

import pytest

from pytest_cudafork import ImportVerdict
from pytest_cudafork.imports.values.left_behind import EnvironmentRead, RunningThread, Traces
from pytest_cudafork.imports.values.records import (
    ImportRecord,
    Outcome,
    at_home,
    from_plain,
    outcome_of,
    to_plain,
)
from pytest_cudafork.observe.story.touch import Touch

V = ImportVerdict


@pytest.mark.parametrize("verdict", list(V))
def test_what_a_verdict_means(verdict: ImportVerdict) -> None:
    plain = outcome_of(verdict)
    strict = outcome_of(verdict, strict=True)
    accepted = outcome_of(verdict, accepted=True)
    assert plain is {
        V.CLEAN: Outcome.PASSED,
        V.NOT_IMPORTABLE: Outcome.SKIPPED,
        V.NOT_OBSERVABLE: Outcome.ERROR,
    }.get(verdict, Outcome.FAILED)
    assert (strict is plain) is (verdict is not V.NOT_IMPORTABLE)
    assert (accepted is Outcome.ACCEPTED) is verdict.touched


def _touch(line: int = 3, library: str = "torch") -> Touch:
    stack = [["/base/a.py", line, "Kernel", 0], ["/base/a.py", 1, "<module>", 0]]
    data = {"id": "7-1", "pid": 7, "t": 5, "owner": "7", "witness": "phantom", "entry": "cuInit"}
    return Touch.from_record({**data, "library": library, "again": True, "stack": stack})


def test_a_record_is_the_same_after_a_journey_as_plain_data() -> None:
    record = ImportRecord(
        "pkg.a",
        "pkg",
        V.TOUCHES_THEN_FAILS,
        without="lib",
        touches=(_touch(), _touch(4, "numba")),
        reason="ValueError: no",
        output="text",
        seconds=0.5,
        confirmed=False,
        loaded=("pkg", "pkg.a"),
        running=(RunningThread("server", "/base/a.py:9", True),),
        traces=Traces(
            (EnvironmentRead("HOME", "/base/a.py:4", is_set=True),), ("socket",), ("pool",)
        ),
    )
    plain = json.loads(json.dumps(to_plain(record)))
    assert from_plain(plain) == record
    assert plain["verdict"] == "touches, then fails to import"
    assert plain["where"] == record.where == "/base/a.py:3"
    assert plain["scope"] == "class body"
    del plain["traces"]  # as records of earlier versions have none
    assert from_plain(plain).traces is None


def test_a_record_of_another_host_names_the_files_that_are_here() -> None:
    record = ImportRecord("a", "a", V.TOUCHES, touches=(_touch(),), reason="/base is no file")
    moved = from_plain(at_home(to_plain(record), "/base", "/here"))
    assert moved.where == "/here/a.py:3"
    assert {frame.filename for frame in moved.touches[0].frames} == {"/here/a.py"}
    assert moved.reason == "/base is no file"
    assert at_home({"x": ("/bases/a", 1, None)}, "/base", "/here") == {"x": ["/bases/a", 1, None]}


def test_a_record_without_a_touch_has_no_culprit() -> None:
    record = ImportRecord("pkg", "pkg", V.CLEAN)
    assert (record.culprit, record.where) == (None, "")
    assert to_plain(record)["scope"] == ""


def test_clean_so_far_is_what_still_runs_a_thread() -> None:
    running = (RunningThread("server", "", False),)
    assert ImportRecord("pkg", "pkg", V.CLEAN, running=running).so_far
    assert not ImportRecord("pkg", "pkg", V.CLEAN).so_far
    assert not ImportRecord("pkg", "pkg", V.TOUCHES, running=running).so_far
