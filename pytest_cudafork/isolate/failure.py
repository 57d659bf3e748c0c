"""Owns the failed report of a test whose child could not report for itself. Runs in the parent.

It does not know how the child was run; it is told how it ended.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pytest_cudafork.child_errors import ChildCrashed, ChildError, ChildTimeout
from pytest_cudafork.isolate import crash
from pytest_cudafork.isolate.supervise import Ending

Phase = Literal["setup", "call", "teardown"]


def next_phase(reports: list[pytest.TestReport]) -> Phase:
    """Return the phase a test was in, from the phases it has reported.

    After the last report it is still the teardown: the process belongs to the test.
    """
    done = {report.when: report for report in reports}
    setup = done.get("setup")
    if setup is None:
        return "setup"
    if setup.passed and "call" not in done:
        return "call"
    return "teardown"


def error_of(ending: Ending, phase: Phase, timeout: float | None) -> ChildError | None:
    """Return the error for how the child ended, or None if it ended as it should."""
    stacks = crash.shorten(ending.stacks)
    stacks = f"\n\nStacks of the process:\n{stacks}" if stacks else ""
    ended = crash.describe(ending.exitcode)
    if ending.malformed:
        return ChildError(
            f"not a message, in {phase}: the process of this test sent something else "
            f"({ending.malformed}) and {ended}. Did the test write to a descriptor it did not open?"
        )
    if ending.timed_out or ending.lingered:
        stacks = stacks or "\n\nIt gave no stacks: it did not react to SIGABRT."
        limit = (
            f"time limit of {timeout:g} s exceeded in {phase}"
            if ending.timed_out and timeout is not None
            else "still running after the test was over"
        )
        return ChildTimeout(
            f"{limit}: the process of this test was killed.{stacks}", timeout, ending.stacks
        )
    if ending.finished and ending.exitcode == 0:
        return None
    name = crash.signal_name(ending.exitcode)
    what = name or f"exit status {ending.exitcode}"
    if not name and not ending.finished:
        ended += " before the test was over"
    when = "after the test was over" if ending.finished else f"in {phase}"
    return ChildCrashed(
        f"{what} {when}: the process of this test {ended}.{stacks}",
        ending.exitcode,
        name,
        ending.stacks,
    )


def report(
    item: pytest.Item,
    phase: Phase,
    error: ChildError,
    sections: list[tuple[str, str]],
    seconds: float = 0.0,
) -> pytest.TestReport:
    """Return a failed report, or an expected failure where the test's xfail mark covers it."""
    import time

    headline, _, _ = str(error).partition("\n")
    name = type(error).__name__
    stop = time.time()
    made = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=_longrepr(item, f"{name}: {headline}", f"{name}: {error}"),
        when=phase,
        sections=sections,
        duration=seconds,
        start=stop - seconds,
        stop=stop,
    )
    reason = _expected(item, error)
    if reason is not None:
        made.outcome = "skipped"
        made.wasxfail = reason
    return made


def _longrepr(item: pytest.Item, headline: str, text: str) -> Any:
    """Return a representation that survives pytest-xdist and gives the summary its line."""
    from _pytest._code.code import (
        ReprEntryNative,
        ReprExceptionInfo,
        ReprFileLocation,
        ReprTraceback,
    )

    path, line, _ = item.location
    crashed = ReprFileLocation(path, (line or 0) + 1, headline)
    entry = ReprEntryNative([f"{text}\n"])
    return ReprExceptionInfo(
        reprtraceback=ReprTraceback([entry], None, style="native"), reprcrash=crashed
    )


def _expected(item: pytest.Item, error: ChildError) -> str | None:
    """Return the reason of the test's xfail mark if it covers ``error``, else None."""
    from _pytest.skipping import evaluate_xfail_marks

    if item.config.getoption("runxfail", False):
        return None
    try:
        mark = evaluate_xfail_marks(item)
    except (Exception, pytest.fail.Exception):  # a mark that is itself wrong expects nothing
        return None
    if mark is None:
        return None
    raises: Any = mark.raises
    if hasattr(raises, "matches"):  # pytest.RaisesExc, pytest >= 8.4
        covered = raises.matches(error)
    else:
        covered = raises is None or isinstance(error, raises)
    return mark.reason if covered else None
