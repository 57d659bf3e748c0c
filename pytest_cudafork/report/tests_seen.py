"""What became of each test, gathered from the reports of all its phases and of all workers."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_cudafork.capture.in_tests.gathered import Gathered
from pytest_cudafork.capture.interface.check_names import CARRIED
from pytest_cudafork.capture.rerun.verdict import AuditedTests
from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.observe.story.plain_text import plain

_RANKS = ("passed", "skipped", "xfailed", "xpassed", "failed", "error")
"""Outcomes; of several that phases of a test have, the last of these counts."""
_FAILURES = ("failed", "error")
UNFINISHED = "unfinished"
"""The outcome of a test that began, and of which no end was told: the session was interrupted."""


class TestsSeen:
    """The tests and collections of a session, in the order in which they were reported."""

    __test__ = False

    def __init__(self) -> None:
        self._tests: dict[str, dict[str, Any]] = {}
        self.errors: list[dict[str, Any]] = []
        """The collections that failed."""
        self.skips: list[dict[str, Any]] = []
        """The files and folders that were skipped as a whole; pytest counts each as one skip."""
        self.captures: list[dict[str, Any]] = []
        """The captured graphs that were checked."""
        self.graphs = Gathered()
        """What was found of captures that tests make by themselves."""
        self.audited = AuditedTests()
        """Those that were run once more with spoiled replays."""

    def add(self, report: pytest.TestReport) -> None:
        """Take note of one phase of a test."""
        test = self._test(report)
        self.graphs.add(report)
        self.audited.add(report)
        for data in getattr(report, CARRIED, ()):
            self.captures.append({"test": report.nodeid, **data})
        is_subtest = pytest_reports.is_of_subtest(report)
        if is_subtest and report.outcome != "failed":
            return
        outcome = outcome_of(report)
        seconds = round(float(report.duration), 6)
        test["phases"].append({"phase": report.when, "outcome": outcome, "seconds": seconds})
        if not is_subtest:  # the time of a subtest is in its test's
            test["seconds"] = round(test["seconds"] + seconds, 6)
        if outcome in _RANKS and _RANKS.index(outcome) > _RANKS.index(test["outcome"]):
            test["outcome"] = outcome
            test["message"] = message_of(report)
            test["where"] = where_of(report)
        method = getattr(report, "isolation", None)
        if method is not None:
            why = plain(str(getattr(report, "isolation_why", "")))
            waited = round(float(getattr(report, "isolation_seconds", 0.0)), 6)
            test["isolation"] = {"method": method, "why": why, "seconds": waited}

    def _test(self, report: pytest.TestReport) -> dict[str, Any]:
        """Return the entry of a report's test, begun anew where it runs again.

        A failure stays unless a plugin has called it by another name, as those do that run a test
        again for it: with ``--dist=each`` and ``--keep-duplicates`` a test runs twice in its own
        right.
        """
        known = self._tests.get(report.nodeid)
        over = known is not None and any(p["phase"] == "teardown" for p in known["phases"])
        again = report.when == "setup" and known is not None and (over or known["phases"])
        if known is not None and not again:
            return known
        file, line, _ = report.location
        kept = known if known is not None and known["outcome"] in _FAILURES else {}
        self._tests[report.nodeid] = {
            "test": report.nodeid,
            "file": file,
            "line": None if line is None else line + 1,
            "outcome": kept.get("outcome", "passed"),
            "runs": 1 if known is None else known["runs"] + 1,
            "seconds": 0.0,
            "phases": [],
            "message": kept.get("message", ""),
            "where": kept.get("where"),
            "isolation": None,
        }
        return self._tests[report.nodeid]

    def add_collection(self, report: pytest.CollectReport) -> None:
        """Take note of a collection, unless it passed."""
        if report.outcome != "passed":
            kind = self.errors if report.outcome == "failed" else self.skips
            kind.append(
                {
                    "node": report.nodeid,
                    "message": message_of(report),
                    "where": where_of(report),
                }
            )

    @property
    def tests(self) -> list[dict[str, Any]]:
        """The tests, as plain data; one that did not come to its end has not passed."""
        return [
            {**test, "outcome": UNFINISHED} if _is_unfinished(test) else test
            for test in self._tests.values()
        ]

    def counts(self) -> dict[str, int]:
        """How many tests have which outcome; those that none has are left out."""
        counts: dict[str, int] = {}
        for test in self.tests:
            counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
        return counts


def _is_unfinished(test: dict[str, Any]) -> bool:
    if test["outcome"] != "passed":
        return False
    last = {each["phase"]: each["outcome"] for each in test["phases"]}
    to_run_again = any(outcome not in _RANKS for outcome in last.values())  # such as "rerun"
    return to_run_again or set(last) == {"setup"}


def outcome_of(report: pytest.TestReport) -> str:
    """Return the outcome of a phase, in pytest's words of its last line, or another plugin's."""
    expected = hasattr(report, "wasxfail")
    if report.outcome == "passed":
        return "xpassed" if expected else "passed"
    if report.outcome == "skipped":
        return "xfailed" if expected else "skipped"
    if report.outcome == "failed":
        # a worker that crashed reports its test in a phase of no name
        return "error" if report.when in ("setup", "teardown") else "failed"
    return str(report.outcome)  # such as "rerun"


def message_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the first line of what a report says; "" of one that says nothing."""
    longrepr: Any = report.longrepr
    if longrepr is None:
        return plain(str(getattr(report, "wasxfail", "")))
    if isinstance(longrepr, tuple):
        return plain(str(longrepr[2]))
    crash = getattr(longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else str(longrepr)
    lines = [line for line in text.splitlines() if line.strip()]
    return plain(lines[0]) if lines else ""


def where_of(report: pytest.TestReport | pytest.CollectReport) -> dict[str, Any] | None:
    """Return the file and line that a report names; None if it names none."""
    longrepr: Any = report.longrepr
    if isinstance(longrepr, tuple):
        return {"file": str(longrepr[0]), "line": int(longrepr[1] or 0)}
    crash = getattr(longrepr, "reprcrash", None)
    if crash is None:
        return None
    return {"file": os.fspath(crash.path), "line": int(crash.lineno)}
