"""Failing a report, or a session, for what was found beside the tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.check.failing import fail_report, fail_session, reasons_of

ITEM = cast(pytest.Item, SimpleNamespace(location=("t.py", 3, "test_a")))


def report(outcome: Any) -> pytest.TestReport:
    return pytest.TestReport("t.py::test_a", ("t.py", 3, "test_a"), {}, outcome, None, "call")


def test_a_report_that_passed_fails_with_the_text_and_the_place_of_the_test() -> None:
    made = report("passed")
    fail_report(ITEM, made, "headline", "", "section")
    assert made.failed
    assert "headline" in str(made.longrepr)


def test_an_expected_failure_fails_too_and_says_what_it_was() -> None:
    made = report("skipped")
    vars(made)["wasxfail"] = "known"
    fail_report(ITEM, made, "headline", "the text", "section")
    assert made.failed
    assert not hasattr(made, "wasxfail")
    assert "the text\n\nThe test itself: skipped." in str(made.longrepr)


def test_a_report_that_failed_keeps_its_failure() -> None:
    made = report("failed")
    fail_report(ITEM, made, "headline", "the text", "section")
    assert made.longrepr is None
    assert made.sections == [("section", "the text")]


@pytest.mark.parametrize(
    ("before", "without_tests", "after"),
    [
        (pytest.ExitCode.OK, False, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.OK, True, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.NO_TESTS_COLLECTED, False, pytest.ExitCode.NO_TESTS_COLLECTED),
        (pytest.ExitCode.NO_TESTS_COLLECTED, True, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.INTERRUPTED, True, pytest.ExitCode.INTERRUPTED),
        (77, True, 77),  # another plugin's
    ],
)
def test_a_session_that_was_good_fails_and_others_end_as_they_would(
    before: int, without_tests: bool, after: int
) -> None:
    session = cast(pytest.Session, SimpleNamespace(exitstatus=before))
    fail_session(session, without_tests=without_tests)
    assert session.exitstatus == after


def test_why_a_session_fails_is_known_once_of_each_reason() -> None:
    config = cast(pytest.Config, SimpleNamespace(stash=pytest.Stash()))
    session = cast(pytest.Session, SimpleNamespace(exitstatus=0, config=config))
    assert reasons_of(config) == []
    fail_session(session, ["no room", ""])
    fail_session(session, ["no room", "no GPU"])
    assert reasons_of(config) == ["no room", "no GPU"]
