"""Owns what a child may say of its test, and whether it has said all of it. Runs in the parent.

It does not know how messages arrive or what is done with them. A report that pytest could not
show would end the whole session in an INTERNALERROR, so everything is looked at before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from pytest_cudafork.process import wire

Phase = Literal["setup", "call", "teardown"]

_PHASES = ("setup", "call", "teardown")
_OUTCOMES = ("passed", "failed", "skipped")
_NUMBER = (int, float)
_LINE = (int, type(None))
_PICKLED = (bytes, type(None))
_SKIP_PARTS = (str, _LINE, str)

_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "over": {"last": bool, "shouldstop": (bool, str), "shouldfail": (bool, str)},
    "stop": {"reason": str, "returncode": _LINE},
    "internal": {"text": str},
    "timeout": {"text": str, "stacks": str},
    "phase": {"phase": str},
    "missing": {"found": list, "errors": list},
    "warning": {
        "pickled": _PICKLED,
        "type": str,
        "text": str,
        "filename": str,
        "lineno": int,
        "line": (str, type(None)),
    },
    # of a function that was called
    "warnings": {"warnings": list},
    "returned": {"pickled": _PICKLED, "repr": str},
    "raised": {
        "repr": str,
        "type": str,
        "traceback": str,
        "pickled": _PICKLED,
        "parts": _PICKLED,
        "outcome": str,
        "why": str,
    },
    "exit": {"code": (int, str, type(None)), "text": str},
    "not_loaded": {"text": str},
}
"""What the fields of each kind of message must be; a kind that is not here is not looked at."""


def check_message(message: wire.Message) -> None:
    """Look at the fields of a message other than a report.

    Raises:
        LookupError: One is not there.
        TypeError: One is not what it should be.

    """
    for name, kinds in _FIELDS.get(message["kind"], {}).items():
        value = message[name]
        if not isinstance(value, kinds):
            raise TypeError(f"{name} is a {type(value).__name__}")
        if kinds is list:
            _check_parts(name, value)


def _check_parts(name: str, parts: list[Any]) -> None:
    """Look at a list, of text or of packed warnings."""
    if name == "warnings":
        for part in parts:
            _require(isinstance(part, dict), name, part)
            check_message({**part, "kind": "warning"})
    else:
        _require(all(isinstance(part, str) for part in parts), name, parts)


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
    outcome of its own, and then the next.
    """
    run: dict[str, pytest.TestReport] = {}
    for report in reports:
        if report.when == "setup" or report.outcome not in _OUTCOMES:
            run.clear()
        if report.outcome in _OUTCOMES:
            run[str(report.when)] = report
    return run


def next_phase(reports: list[pytest.TestReport]) -> Phase:
    """Return the phase a test was in, from the phases it has reported.

    After the last report it is still the teardown: the process belongs to the test.
    """
    done = _last_run(reports)
    setup = done.get("setup")
    if setup is None:
        return "setup"
    if setup.passed and "call" not in done and "teardown" not in done:
        return "call"
    return "teardown"


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
