"""Tests of what is looked at in a child's reports before pytest shows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate.session.report_checks import (
    check_report,
    missing_phase,
    next_phase,
    phase_named,
)


def report(when: str = "call", outcome: str = "passed", **changes: Any) -> pytest.TestReport:
    """Return a report as a child sends it."""
    given: dict[str, Any] = {
        "nodeid": "test_a.py::test_x",
        "location": ("test_a.py", 1, "test_x"),
        "keywords": {"test_x": 1},
        "outcome": outcome,
        "longrepr": None,
        "when": when,
        "sections": [("Captured stdout call", "text")],
        "duration": 0.1,
        "user_properties": [("key", 1)],
    }
    made = pytest.TestReport(**given)
    vars(made).update(changes)
    return made


SKIP = ("test_a.py", 3, "Skipped: no")


@pytest.mark.parametrize(
    "good",
    [
        report(),
        report("setup", "skipped", longrepr=SKIP),
        report(outcome="skipped", longrepr=None, wasxfail="expected"),
        report(outcome="failed", longrepr="text"),
        report(outcome="rerun", longrepr=SimpleNamespace(toterminal=None)),
        report(location=("test_a.py", None, "test_x")),
        report(start=1, stop=2.5),
    ],
    ids=["passed", "skipped", "xfailed", "failed", "rerun", "no line", "times"],
)
def test_what_pytest_can_show_passes(good: pytest.TestReport) -> None:
    check_report(good)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("when", "collect"),
        ("outcome", None),
        ("location", ("test_a.py", 1)),
        ("location", ("test_a.py", "1", "test_x")),
        ("keywords", ["test_x"]),
        ("duration", "0.1"),
        ("start", "1"),
        ("stop", None),
        ("sections", [("title",)]),
        ("sections", [("title", 5)]),
        ("user_properties", (("key", 1),)),
        ("wasxfail", 5),
        ("longrepr", 5),
        ("longrepr", ("a", 1)),
        ("longrepr", SimpleNamespace(toterminal=None, reprcrash=SimpleNamespace(message=5))),
    ],
)
def test_a_field_that_pytest_would_stumble_over_is_named(field: str, value: object) -> None:
    changes: dict[str, Any] = {"outcome": "failed", field: value}
    with pytest.raises(TypeError, match=rf"^({field}|message) is "):
        check_report(report(**changes))


@pytest.mark.parametrize("reason", [None, "no", (1, 2, 3)])
def test_a_skip_without_place_and_reason_is_refused(reason: object) -> None:
    with pytest.raises(TypeError, match="longrepr is"):
        check_report(report("setup", "skipped", longrepr=reason))


def test_a_failure_that_cannot_be_rendered_is_refused() -> None:
    class Broken:
        toterminal = None

        def __str__(self) -> str:
            raise RuntimeError("cannot be rendered")

    with pytest.raises(RuntimeError, match="cannot be rendered"):
        check_report(report(outcome="failed", longrepr=Broken()))


def test_phases_that_a_test_goes_on_to_are_known_by_name() -> None:
    assert [phase_named(name) for name in ("call", "teardown")] == ["call", "teardown"]
    for name in ("setup", "", "surprise"):
        with pytest.raises(ValueError, match="no phase"):
            phase_named(name)


SETUP, CALL, TEARDOWN = report("setup"), report("call"), report("teardown")
FAILED_SETUP = report("setup", "failed")
RERUN = report("call", "rerun")
KNOWN, BLOCKED = report("call", "known issue"), report("setup", "blocked")


@pytest.mark.parametrize(
    ("reports", "phase", "missing"),
    [
        ([], "setup", "setup"),
        ([SETUP], "call", "call"),
        ([SETUP, CALL], "teardown", "teardown"),
        ([SETUP, CALL, TEARDOWN], "teardown", None),
        ([FAILED_SETUP], "teardown", "teardown"),
        ([FAILED_SETUP, TEARDOWN], "teardown", None),
        ([SETUP, TEARDOWN], "teardown", "call"),
        ([SETUP, CALL, TEARDOWN, SETUP], "call", "call"),
        ([SETUP, RERUN, TEARDOWN], "setup", "setup"),
        ([SETUP, KNOWN], "call", "teardown"),
        ([SETUP, KNOWN, CALL], "teardown", "teardown"),
        ([SETUP, KNOWN, TEARDOWN], "teardown", None),
        ([BLOCKED, TEARDOWN], "teardown", None),
    ],
    ids=lambda value: (
        " ".join(f"{one.when[0]}{one.outcome[0]}" for one in value)
        if isinstance(value, list)
        else None
    ),
)
def test_the_phase_and_the_one_that_is_missing_follow_from_the_reports_of_the_last_run(
    reports: list[pytest.TestReport], phase: str, missing: str | None
) -> None:
    assert next_phase(reports) == phase
    assert missing_phase(reports) == missing


def test_where_tests_are_not_called_no_call_is_missing() -> None:
    assert missing_phase([SETUP, TEARDOWN], calls=False) is None
    assert missing_phase([SETUP], calls=False) == "teardown"
