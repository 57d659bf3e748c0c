"""Tests of the failed report of a test whose child could not report for itself."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.compat.plugins.forked import CLAIM, Claim
from pytest_cudafork.errors import ChildCrashed, ChildError, ChildTimeout
from pytest_cudafork.isolate.session import failure
from pytest_cudafork.process import exit_status
from pytest_cudafork.process.channel import EXIT_LOST
from pytest_cudafork.process.supervision import Ending
from tests.support.child_endings import ending
from tests.unit.isolate.session import items_of


def test_a_child_that_ended_as_it_should_is_no_error() -> None:
    assert failure.error_of(ending(), "teardown", 5.0) is None


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        (
            ending(-11, finished=False, stacks="  File a.py"),
            ChildCrashed,
            "SIGSEGV in call: the process of this test was killed by SIGSEGV (exit status -11).\n\n"
            "Stacks of the process:\n  File a.py",
        ),
        (
            ending(-9, finished=False),
            ChildCrashed,
            "SIGKILL in call: the process of this test was killed by SIGKILL (exit status -9); "
            "out of memory? See `dmesg`; or something else killed it.",
        ),
        (
            ending(3, finished=False),
            ChildCrashed,
            "exit status 3 in call: the process of this test exited with status 3 before the test "
            "was over.",
        ),
        (
            ending(0, finished=False),
            ChildCrashed,
            "exit status 0 in call: the process of this test exited with status 0 before the test "
            "was over.",
        ),
        (
            ending(EXIT_LOST, finished=False),
            ChildCrashed,
            f"exit status {EXIT_LOST} in call: the process of this test exited with status "
            f"{EXIT_LOST} before the test was over; it could not report: did the test close "
            "descriptors that it did not open?",
        ),
        (
            ending(-6),
            ChildCrashed,
            "SIGABRT after the test was over: the process of this test was killed by SIGABRT "
            "(exit status -6).",
        ),
        (
            ending(-6, finished=False, timed_out=True, stacks="  File a.py"),
            ChildTimeout,
            "time limit of 2.5 s exceeded in call: the process of this test was killed."
            "\n\nStacks of the process:\n  File a.py",
        ),
        (
            ending(-6, timed_out=True),
            ChildTimeout,
            "time limit of 2.5 s exceeded after the test was over, by what runs at the end of its "
            "process: the process of this test was killed.",
        ),
        (
            ending(-9, finished=False, status_lost=exit_status.REAPED),
            ChildCrashed,
            "gone in call: the process of this test has ended, and how is not known: something "
            "else in this process has waited for it (a handler of SIGCHLD, os.wait, a thread).",
        ),
        (
            ending(-9, finished=False, status_lost=exit_status.WITH_SERVER),
            ChildCrashed,
            "gone in call: the process of this test has ended with the fork server that had "
            "started it, and whose warning says how the server ended.",
        ),
        (
            ending(-6, lingered=True),
            ChildTimeout,
            "still running after the test was over: the process of this test was killed.",
        ),
        (
            ending(-9, malformed="junk"),
            ChildError,
            "not a message, in call: the process of this test sent something else (junk) and was "
            "killed for it. Did the test write to a descriptor it did not open?",
        ),
        (
            ending(1, malformed="junk"),
            ChildError,
            "not a message, in call: the process of this test sent something else (junk) and "
            "exited with status 1. Did the test write to a descriptor it did not open?",
        ),
    ],
    ids=[
        "signal",
        "killed",
        "early exit",
        "early exit with 0",
        "lost",
        "after the test",
        "time limit",
        "time limit at the end",
        "reaped by others",
        "gone with the server",
        "lingered",
        "malformed and killed",
        "malformed",
    ],
)
def test_an_error_says_how_the_child_ended_and_in_which_phase(
    how: Ending, kind: type, words: str
) -> None:
    error = failure.error_of(how, "call", 2.5)
    assert type(error) is kind
    assert str(error) == words


def test_errors_hold_what_programs_ask_for() -> None:
    crash = failure.error_of(ending(-11, stacks="here"), "call", None)
    assert isinstance(crash, ChildCrashed)
    assert (crash.exitcode, crash.signal_name, crash.stacks) == (-11, "SIGSEGV", "here")
    hang = failure.error_of(ending(-6, timed_out=True, stacks="here"), "call", 2.5)
    assert isinstance(hang, ChildTimeout)
    assert (hang.timeout, hang.stacks) == (2.5, "here")


def test_a_test_without_a_report_is_told_of_the_likely_reason() -> None:
    assert str(failure.no_report("call")).startswith("no report of call: ")


SOURCE = """
import pytest
from pytest_cudafork import ChildCrashed, ChildTimeout

def test_plain(): pass

@pytest.mark.xfail(reason="known")
def test_expected(): pass

@pytest.mark.xfail(reason="known", raises=ChildCrashed)
def test_crash_expected(): pass

@pytest.mark.xfail(reason="known", raises=ChildTimeout)
def test_hang_expected(): pass

@pytest.mark.xfail("no such name")
def test_wrong_mark(): pass

@pytest.mark.forked
def test_forked(): pass

@pytest.mark.forked
@pytest.mark.xfail(reason="known")
def test_forked_expected(): pass
"""

CRASH = ChildCrashed("SIGSEGV in call: it is gone\nstacks", -11, "SIGSEGV")


def collected(pytester: pytest.Pytester, *args: str) -> dict[str, pytest.Item]:
    """Return tests by their names; none is run, so no fork server is started for them."""
    return {item.name: item for item in items_of(pytester, SOURCE, "--collect-only", *args)}


@pytest.fixture
def items(pytester: pytest.Pytester) -> dict[str, pytest.Item]:
    """Tests by their names."""
    return collected(pytester)


def test_a_report_is_shown_as_that_of_a_failed_test(items: dict[str, pytest.Item]) -> None:
    item = items["test_plain"]
    sections = [("Captured stdout call", "text")]
    report = failure.report(item, "call", CRASH, sections, 2.0)
    assert (report.nodeid, report.location) == (item.nodeid, item.location)
    assert (report.when, report.outcome, report.duration) == ("call", "failed", 2.0)
    assert (report.sections, "test_plain" in report.keywords) == (sections, True)
    assert report.stop - report.start == pytest.approx(2.0)
    crash: Any = report.longrepr
    assert crash.reprcrash.message == "ChildCrashed: SIGSEGV in call: it is gone"
    assert (crash.reprcrash.path, crash.reprcrash.lineno) == (item.location[0], 4)
    assert report.longreprtext.strip() == "ChildCrashed: SIGSEGV in call: it is gone\nstacks"


def test_a_mark_covers_what_it_says(items: dict[str, pytest.Item]) -> None:
    outcomes = {
        name: failure.report(item, "call", CRASH, []).outcome
        for name, item in items.items()
        if "forked" not in name
    }
    assert outcomes == {
        "test_plain": "failed",
        "test_expected": "skipped",
        "test_crash_expected": "skipped",
        "test_hang_expected": "failed",
        "test_wrong_mark": "failed",
    }
    report: Any = failure.report(items["test_expected"], "call", CRASH, [])
    assert report.wasxfail == "known"


def test_a_test_that_was_not_run_has_not_failed_as_expected(
    items: dict[str, pytest.Item],
) -> None:
    report = failure.report(items["test_expected"], "setup", ChildError("no"), [], ran=False)
    assert report.outcome == "failed"
    assert not hasattr(report, "wasxfail")


def test_with_runxfail_no_failure_is_expected(pytester: pytest.Pytester) -> None:
    items = collected(pytester, "--runxfail")
    assert failure.report(items["test_expected"], "call", CRASH, []).outcome == "failed"


def test_in_the_place_of_pytest_forked_its_words_are_there(items: dict[str, pytest.Item]) -> None:
    line = "running the test CRASHED with signal 11 (SIGSEGV)"
    assert items["test_forked"].config.stash[CLAIM] == Claim(ours=True)
    assert line in failure.report(items["test_forked"], "call", CRASH, []).longreprtext
    assert line not in failure.report(items["test_plain"], "call", CRASH, []).longreprtext
    report: Any = failure.report(items["test_forked_expected"], "call", CRASH, [])
    assert report.outcome == "skipped"
    assert report.wasxfail.startswith("reason: known; pytest-cudafork reason: ")
    assert report.wasxfail.endswith(line)
