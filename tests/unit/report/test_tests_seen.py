"""What became of each test, from the reports of its phases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.report.tests_seen import TestsSeen, message_of, outcome_of, where_of

NODE = "test_a.py::test_a"


def report(
    when: Any = "call", outcome: Any = "passed", longrepr: Any = None, **about: Any
) -> pytest.TestReport:
    """Return a report of a phase."""
    made = pytest.TestReport(NODE, ("test_a.py", 4, "test_a"), {}, outcome, longrepr, when)
    made.duration = 0.25
    vars(made).update(about)
    return made


def crash(message: str) -> Any:
    """Return what a report shows of an exception."""
    place = SimpleNamespace(message=message, path="/p/a.py", lineno=7)
    return SimpleNamespace(reprcrash=place)


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (report(), "passed"),
        (report(outcome="failed"), "failed"),
        (report("setup", "failed"), "error"),
        (report("teardown", "failed"), "error"),
        (report("???", "failed"), "failed"),  # of a worker of pytest-xdist that crashed
        (report(outcome="skipped"), "skipped"),
        (report(outcome="skipped", wasxfail="x"), "xfailed"),
        (report(outcome="passed", wasxfail="x"), "xpassed"),
        (report(outcome="rerun"), "rerun"),
    ],
)
def test_outcomes_have_pytests_words(made: pytest.TestReport, outcome: str) -> None:
    assert outcome_of(made) == outcome


def test_a_test_is_all_its_phases_and_the_worst_of_them_counts() -> None:
    seen = TestsSeen()
    seen.add(report("setup", isolation="spawn", isolation_why="not fork: threads"))
    seen.add(report(outcome="failed", longrepr=crash("\nE  wrong\nmore")))
    more = {"isolation": "spawn", "isolation_seconds": 0.25, "isolation_why": "not fork: threads"}
    seen.add(report("teardown", "failed", crash("left behind"), **more))
    (test,) = seen.tests
    assert (test["file"], test["line"], test["runs"]) == ("test_a.py", 5, 1)
    assert (test["outcome"], test["message"]) == ("error", "left behind")
    assert [p["outcome"] for p in test["phases"]] == ["passed", "failed", "error"]
    assert test["seconds"] == 0.75
    assert test["isolation"] == {"method": "spawn", "why": "not fork: threads", "seconds": 0.25}
    assert test["where"] == {"file": "/p/a.py", "line": 7}
    assert seen.counts() == {"error": 1}


def test_of_a_test_that_runs_again_the_last_run_counts() -> None:
    seen = TestsSeen()
    for outcome in ("rerun", "passed"):
        seen.add(report("setup"))
        seen.add(report(outcome=outcome))
        seen.add(report("teardown"))
    (test,) = seen.tests
    assert (test["outcome"], test["runs"], len(test["phases"])) == ("passed", 2, 3)


def test_a_subtest_counts_only_where_it_failed() -> None:
    class SubtestReport(pytest.TestReport):
        """A report of a subtest."""

    seen = TestsSeen()
    seen.add(report("setup"))
    for outcome in ("passed", "failed"):
        made = report(outcome=outcome, longrepr="wrong")
        made.__class__ = SubtestReport
        seen.add(made)
    (test,) = seen.tests
    assert (test["outcome"], test["message"], len(test["phases"])) == ("failed", "wrong", 2)


def test_checked_captures_are_gathered_with_their_test() -> None:
    seen = TestsSeen()
    seen.add(report(_cudafork_captures=[{"title": "t"}]))
    assert seen.captures == [{"test": NODE, "title": "t"}]


def test_a_collection_that_failed_is_told() -> None:
    seen = TestsSeen()
    good = pytest.CollectReport("a.py", "passed", None, [])
    bad = pytest.CollectReport("b.py", "failed", crash("no such module"), [])
    seen.add_collection(good)
    seen.add_collection(bad)
    (told,) = seen.errors
    assert told == {
        "node": "b.py",
        "message": "no such module",
        "where": {"file": "/p/a.py", "line": 7},
    }
    assert seen.skips == []


def test_a_file_that_is_skipped_as_a_whole_is_told() -> None:
    seen = TestsSeen()
    skip: Any = ("/p/b.py", 3, "Skipped: no GPU")
    seen.add_collection(pytest.CollectReport("b.py", "skipped", skip, []))
    (told,) = seen.skips
    assert told == {
        "node": "b.py",
        "message": "Skipped: no GPU",
        "where": {"file": "/p/b.py", "line": 3},
    }
    assert seen.errors == []


def test_the_message_is_one_line_whatever_a_report_holds() -> None:
    assert message_of(report()) == ""
    assert message_of(report(wasxfail="known")) == "known"
    skip = report(outcome="skipped", longrepr=("/p/a.py", 3, "Skipped: no GPU"))
    assert message_of(skip) == "Skipped: no GPU"
    assert where_of(skip) == {"file": "/p/a.py", "line": 3}
    assert message_of(report(longrepr="\n\nfirst\nsecond")) == "first"
    assert message_of(report(longrepr="  ")) == ""
    assert where_of(report(longrepr="text")) is None


def test_a_test_that_was_interrupted_has_not_passed() -> None:
    seen = TestsSeen()
    seen.add(report("setup"))
    assert [test["outcome"] for test in seen.tests] == ["unfinished"]
    assert seen.counts() == {"unfinished": 1}
    seen.add(report())
    assert seen.counts() == {"passed": 1}


def test_a_test_of_which_only_the_fixtures_were_asked_for_has_passed() -> None:
    seen = TestsSeen()
    for when in ("setup", "teardown"):  # --setup-only
        seen.add(report(when))
    assert seen.counts() == {"passed": 1}


def test_a_failure_stays_where_a_test_runs_twice_in_its_own_right() -> None:
    """As with ``--keep-duplicates``, and with ``--dist=each`` where workers take turns."""
    seen = TestsSeen()
    for outcome in ("failed", "passed"):
        seen.add(report("setup"))
        seen.add(report(outcome=outcome, longrepr=crash("wrong") if outcome == "failed" else None))
        seen.add(report("teardown"))
    (test,) = seen.tests
    assert (test["outcome"], test["message"], test["runs"]) == ("failed", "wrong", 2)
    assert test["where"] == {"file": "/p/a.py", "line": 7}
    assert seen.counts() == {"failed": 1}


def test_a_test_that_was_to_run_again_has_not_passed() -> None:
    seen = TestsSeen()
    seen.add(report("setup"))
    seen.add(report(outcome="rerun"))  # pytest-rerunfailures waits before the next run
    assert seen.counts() == {"unfinished": 1}
    seen.add(report())  # pytest-retry runs the body alone again
    assert seen.counts() == {"passed": 1}
    seen.add(report("teardown", "rerun"))
    assert seen.counts() == {"unfinished": 1}


def test_the_time_of_a_subtest_that_failed_is_counted_once() -> None:
    class SubtestReport(pytest.TestReport):
        """A report of a subtest."""

    seen = TestsSeen()
    seen.add(report("setup"))
    made = report(outcome="failed", longrepr="wrong")
    made.__class__ = SubtestReport
    seen.add(made)
    seen.add(report(outcome="failed", longrepr="contains 1 failed subtest"))
    (test,) = seen.tests
    assert [each["seconds"] for each in test["phases"]] == [0.25, 0.25, 0.25]
    assert test["seconds"] == 0.5
