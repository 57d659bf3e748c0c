"""The failed report of a test whose child could not report for itself."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.plugins import forked
from pytest_cudafork.compat.unpatched import signal, time
from pytest_cudafork.errors import ChildCrashed, ChildError, ChildTimeout
from pytest_cudafork.isolate.session.report_checks import Phase
from pytest_cudafork.process import exit_status
from pytest_cudafork.process.supervision import Ending


def error_of(ending: Ending, phase: Phase, timeout: float | None) -> ChildError | None:
    """Return the error for how the child ended, or None if it ended as it should.

    Args:
        ending: How it ended.
        phase: The phase that the test was in.
        timeout: Its time limit in seconds.

    """
    stacks = exit_status.where(ending.stacks, ending.native, ending.state, stuck=ending.stuck)
    ended = exit_status.describe(ending.exitcode)
    if ending.malformed:
        # most often it was this side that killed it, which is no sign of anything
        ended = "was killed for it" if ending.exitcode == -signal.SIGKILL else ended
        return ChildError(
            f"not a message, in {phase}: the process of this test sent something else "
            f"({ending.malformed}) and {ended}. Did the test write to a descriptor it did not open?"
        )
    if ending.timed_out or ending.lingered:
        limit = "still running after the test was over"
        if ending.timed_out and timeout is not None:
            when = "after the test was over, by what runs at the end of its process"
            when = when if ending.finished else f"in {phase}"
            limit = f"time limit of {timeout:g} s exceeded {when}"
        return ChildTimeout(
            f"{limit}: the process of this test was killed.{stacks}", timeout, ending.stacks
        )
    if ending.finished and ending.exitcode == 0:
        return None
    if ending.status_lost:
        when = "after the test was over" if ending.finished else f"in {phase}"
        return ChildCrashed(f"gone {when}: the process of this test {ending.status_lost}.{stacks}")
    name = exit_status.signal_name(ending.exitcode)
    what = name or f"exit status {ending.exitcode}"
    if not name and not ending.finished:
        ended += f" before the test was over{exit_status.lost(ending.exitcode, 'the test')}"
    when = "after the test was over" if ending.finished else f"in {phase}"
    stop = "" if ended.endswith("?") else "."
    return ChildCrashed(
        f"{what} {when}: the process of this test {ended}{stop}{stacks}",
        ending.exitcode,
        name,
        ending.stacks,
    )


def no_report(phase: Phase) -> ChildError:
    """Return the error for a test that says that it is over without a report of this phase."""
    return ChildError(
        f"no report of {phase}: the process of this test says that the test is over. Does a "
        "plugin or conftest.py keep reports from pytest_runtest_logreport?"
    )


def report(
    item: pytest.Item,
    phase: Phase,
    error: ChildError,
    sections: list[tuple[str, str]],
    seconds: float = 0.0,
    *,
    ran: bool = True,
) -> pytest.TestReport:
    """Return a failed report, or an expected failure where the test's xfail mark covers it.

    A test that could not be run (``ran`` is false) has not failed as expected.
    """
    headline, _, _ = str(error).partition("\n")
    name = type(error).__name__
    more = forked.crash_line(item, error)
    stop = time.time()
    made = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=_longrepr(
            item, f"{name}: {headline}", f"{name}: {error}" + (f"\n\n{more}" if more else "")
        ),
        when=phase,
        sections=sections,
        duration=seconds,
        start=stop - seconds,
        stop=stop,
    )
    reason = _expected(item, error) if ran else None
    if reason is not None:
        made.outcome = "skipped"
        made.wasxfail = forked.expected(reason, more) if more else reason
    return made


def no_teardown(item: pytest.Item, last: pytest.TestReport) -> pytest.TestReport:
    """Return the report of a teardown that did not happen, after the one of the test's death.

    It says nothing: what is to be said, that one has said.
    """
    made = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict(last.keywords),
        outcome="passed",
        longrepr=None,
        when="teardown",
        sections=list(last.sections),
        start=last.stop,
        stop=last.stop,
    )
    made.user_properties = list(last.user_properties)
    return made


def _longrepr(item: pytest.Item, headline: str, text: str) -> Any:
    """Return a representation that survives pytest-xdist and gives the summary its line."""
    path, line, _ = item.location
    return pytest_internals.native_representation(path, (line or 0) + 1, headline, text)


def _expected(item: pytest.Item, error: ChildError) -> str | None:
    """Return the reason of the test's xfail mark if it covers ``error``, else None."""
    if item.config.getoption("runxfail", False):
        return None
    try:
        mark = pytest_internals.xfail_mark(item)
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
