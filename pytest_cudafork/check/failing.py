"""Failing a test, or the whole session, for what was found beside it, whatever was expected."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_cudafork.compat import pytest_internals

_REASONS = pytest.StashKey[dict[str, None]]()
"""Why the session fails beside its tests, in words, in the order in which that was known."""


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


def fail_session(
    session: pytest.Session, why: Iterable[str] = (), *, without_tests: bool = False
) -> None:
    """Let a session fail that would have been good; one that ends otherwise keeps its exit status.

    Args:
        session: It, in ``pytest_sessionfinish``.
        why: What is wrong, in words, unless reports have it otherwise, as of a test or a file.
        without_tests: Whether one that has collected no test is said to have failed, too.

    """
    session.exitstatus = failed_status(session.exitstatus, without_tests=without_tests)
    for words in filter(None, why):
        session.config.stash.setdefault(_REASONS, {})[words] = None


def reasons_of(config: pytest.Config) -> list[str]:
    """Return what ``fail_session`` was given as reasons."""
    return list(config.stash.get(_REASONS, None) or ())


def failed_status(status: int, *, without_tests: bool = False) -> int:
    """Return the exit status that ``fail_session`` gives to a session with this one."""
    good = [pytest.ExitCode.OK, *[pytest.ExitCode.NO_TESTS_COLLECTED] * without_tests]
    return pytest.ExitCode.TESTS_FAILED if status in good else status
