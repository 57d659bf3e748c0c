"""Failing the report of a test for what was found beside it, whatever was expected of it."""

from __future__ import annotations

import pytest

from pytest_cudafork.compat import pytest_internals


def fail_report(
    item: pytest.Item, report: pytest.TestReport, headline: str, text: str, section: str
) -> None:
    """Fail a report; one that has failed by itself says it in a section of that name."""
    if report.failed:
        report.sections.append((section, text or headline))
        return
    before = "" if report.passed else f"\n\nThe test itself: {report.outcome}."
    path, line, _ = item.location
    report.longrepr = pytest_internals.native_representation(
        path, (line or 0) + 1, headline, f"{text or headline}{before}"
    )
    report.outcome = "failed"
    report.__dict__.pop("wasxfail", None)
