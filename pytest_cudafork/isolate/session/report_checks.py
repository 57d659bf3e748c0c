"""Checks of a child's reports: can pytest show them, and has the test reported every phase.

A report that pytest could not show would end the whole session in an INTERNALERROR, so everything
in it is looked at before it is used. (Other messages are looked at where they are decoded.)
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

Phase = Literal["setup", "call", "teardown"]

_PHASES = ("setup", "call", "teardown")
_OUTCOMES = ("passed", "failed", "skipped")
_RERUN: Any = "rerun"
"""The outcome that pytest-rerunfailures gives a run which does not count."""
_NUMBER = (int, float)
_LINE = (int, type(None))
_SKIP_PARTS = (str, _LINE, str)


def phase_named(name: str) -> Phase:
    """Return the phase of this name, which a test may go on to.

    Raises:
        ValueError: There is none.

    """
    if name == "call":
        return "call"
    if name == "teardown":
        return "teardown"
    raise ValueError(f"no phase: {name!r:.50}")


def check_report(report: pytest.TestReport) -> None:
    """Look at everything in a report that pytest will use when it shows it.

    Raises:
        TypeError: A field is not what it should be.

    """
    plain = type(report) is pytest.TestReport  # a subtest's has a phase of its own
    _require(not plain or report.when in _PHASES, "when", report.when)
    _require(isinstance(report.outcome, str), "outcome", report.outcome)
    _require(_is_triple(report.location, (str, _LINE, str)), "location", report.location)
    _require(isinstance(report.keywords, dict), "keywords", report.keywords)
    _require(isinstance(report.duration, _NUMBER), "duration", report.duration)
    for name in ("start", "stop"):  # pytest >= 7.4 has them in its own reports
        value = getattr(report, name, 0)
        _require(isinstance(value, _NUMBER), name, value)
    _require(_are_pairs(report.sections, str), "sections", report.sections)
    _require(_are_pairs(report.user_properties, object), "user_properties", report.user_properties)
    expected = hasattr(report, "wasxfail")
    _require(not expected or isinstance(report.wasxfail, str), "wasxfail", report)
    _check_longrepr(report, expected)


def _check_longrepr(report: pytest.TestReport, expected: bool) -> None:
    """Look at what a report shows; pytest unpacks a skip's, and renders a failure's."""
    longrepr: Any = report.longrepr
    if report.outcome == "skipped" and not expected and type(report) is pytest.TestReport:
        _require(_is_triple(longrepr, _SKIP_PARTS), "longrepr", longrepr)
    elif longrepr is not None and not isinstance(longrepr, str):
        known = hasattr(longrepr, "toterminal") or _is_triple(longrepr, _SKIP_PARTS)
        _require(known, "longrepr", longrepr)
        str(longrepr)  # renders it, as the summary will
        crash = getattr(longrepr, "reprcrash", None)
        message = getattr(crash, "message", "")
        _require(isinstance(message, str), "message", message)


def _require(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise TypeError(f"{name} is {value!r:.200}")


def _is_triple(value: Any, kinds: tuple[Any, Any, Any]) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == len(kinds)
        and all(isinstance(part, kind) for part, kind in zip(value, kinds, strict=True))
    )


def _are_pairs(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and isinstance(pair[0], kind)
        and isinstance(pair[1], kind)
        for pair in value
    )


def _last_run(reports: list[pytest.TestReport]) -> dict[str, pytest.TestReport]:
    """Return the reports of the last time the test ran, by phase.

    It may have run several times: pytest-rerunfailures reports a run that does not count with an
    outcome of its own, and then all phases of the next. What another plugin or a conftest gives an
    outcome of its own is told all the same; pytest-retry reports the call alone once more.
    """
    run: dict[str, pytest.TestReport] = {}
    for report in reports:
        if report.when == "setup" or report.outcome == _RERUN:
            run.clear()
        if report.outcome != _RERUN:
            run[str(report.when)] = report
    return run


def next_phase(reports: list[pytest.TestReport]) -> Phase:
    """Return the phase a test was in, from the phases it has reported.

    After the last report it is still the teardown: the process belongs to the test.
    """
    done = _last_run(reports)
    setup, call = done.get("setup"), done.get("call")
    if setup is None:
        return "setup"
    if setup.passed and "teardown" not in done and (call is None or call.outcome not in _OUTCOMES):
        return "call"
    return "teardown"


def told_phases(reports: list[pytest.TestReport]) -> frozenset[str]:
    """Return the phases that have been reported of a test's last run."""
    return frozenset(_last_run(reports))


def missing_phase(reports: list[pytest.TestReport], *, calls: bool = True) -> Phase | None:
    """Return the first phase that a test which is over has not reported, or None.

    Args:
        reports: What it has reported.
        calls: Whether tests are called at all (not with ``--setup-only``).

    """
    done = _last_run(reports)
    if "setup" not in done:
        return "setup"
    if calls and done["setup"].passed and "call" not in done:
        return "call"
    return None if "teardown" in done else "teardown"
