"""Reports as they come from a child, with what they say beyond pytest's own serialization.

``child/reporter.py`` packs them.

pytest turns a representation other than a traceback (an unknown fixture, a doctest) into text when
it serializes a report; then it is shown without colors, and once more in the short summary. The
counts of failed subtests, the properties of the whole suite and the attributes of a test case in
the JUnit file are in no report at all, and neither is what pytest-benchmark has measured or what a
scenario of pytest-bdd came to.

Most reports say that a phase has passed, and differ from the one before by its name and times.
Those travel without the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from pytest_cudafork.compat import pytest_internals, pytest_reports
from pytest_cudafork.compat.plugins import bdd, benchmark

SHOWN = "_cudafork_shown"
SUBTESTS = "_cudafork_subtests"
SUITE = "_cudafork_suite"
CASE = "_cudafork_case"
MEASURED = "_cudafork_measured"
SCENARIO = "_cudafork_scenario"
_BESIDE = (SHOWN, SUBTESTS, SUITE, CASE, MEASURED, SCENARIO)
SAME = "_cudafork_same"
"""The key of a report that is like the one before but for what it holds."""
TIMES = ("duration", "start", "stop")
_TYPE = "$report_type"
_WORDS: Mapping[Any, Any] = {
    word: word for word in ("setup", "call", "teardown", "passed", "failed", "skipped")
}
"""The words that reports consist of, to be shared by all of them."""


class Shown(pytest_internals.TerminalRepr):
    """A representation that was made in another process: its text, with and without colors."""

    def __init__(self, plain: str, marked: str) -> None:
        self._plain = plain
        self._marked = marked

    def toterminal(self, tw: Any) -> None:
        """Write it as it would have been written in the other process."""
        tw.write(self._marked if tw.hasmarkup else self._plain)


class Likeness(NamedTuple):
    """What the reports of a test's phases have in common as a rule."""

    nodeid: str
    location: Any
    keywords: dict[str, Any]


def likeness(report: pytest.TestReport) -> Likeness:
    """Return what another report may be like; hooks may change the report afterwards."""
    return Likeness(report.nodeid, report.location, dict(report.keywords))


def load(
    item: pytest.Item, data: dict[str, Any], before: Likeness | None = None
) -> pytest.TestReport:
    """Return a report of ``item`` from its packed form, and enter what it says beside itself.

    Args:
        item: The test.
        data: The packed form.
        before: What the report before it was like, if there was one.

    Raises:
        LookupError: It is no report.
        TypeError: Likewise.

    """
    if SAME in data:
        if before is None:
            raise LookupError("there is no report before it")
        return _like(item, data, before)
    config = item.config
    beside = {key: data.pop(key) for key in _BESIDE if key in data}
    kwargs = pytest_reports.subtest_arguments(data)
    report = pytest_reports.from_plain(config, data)
    if not isinstance(report, pytest.TestReport):
        raise TypeError(f"no report of a test: {type(report).__name__}")
    _share(item, report)
    if kwargs and hasattr(report, "context"):
        # pytest 9 takes the repr of these once more on the way back: i='1' for i=1
        object.__setattr__(report.context, "kwargs", kwargs)
    if beside.get(SHOWN):
        plain, marked = beside[SHOWN]
        report.longrepr = Shown(str(plain), str(marked))
    _enter(item, report, beside)
    return report


def _like(item: pytest.Item, data: Mapping[str, Any], before: Likeness) -> pytest.TestReport:
    """Return the report of a phase that has passed as the one before it."""
    if data.get("outcome", "passed") != "passed":
        raise LookupError("a report of what has not passed is whole")
    times = {name: data[name] for name in TIMES}
    when = _WORDS.get(data["when"], data["when"])
    return pytest.TestReport(
        pytest_reports.id_of(item),
        before.location,
        dict(before.keywords),
        _WORDS["passed"],
        None,
        when,
        **times,
    )


def _share(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a report have its item's own strings, as one made here has; sessions keep all reports."""
    pytest_reports.use_id_of(item, report)  # it may differ outside the root directory
    report.outcome = _WORDS.get(report.outcome, report.outcome)
    report.when = _WORDS.get(report.when, report.when)
    vars(report).pop(_TYPE, None)  # pytest leaves it there
    if tuple(report.location) == item.location:
        report.location = item.location
    known = {name: name for name in item.keywords}
    report.keywords = {known.get(name, name): value for name, value in report.keywords.items()}


def _enter(item: pytest.Item, report: pytest.TestReport, beside: Mapping[str, Any]) -> None:
    """Put what stands beside a report where this session keeps it."""
    counts = pytest_reports.subtest_counts(item.config)
    if counts is not None and SUBTESTS in beside:
        counts[getattr(report, "id", report.nodeid)] = int(beside[SUBTESTS])
    for each in beside.get(MEASURED, ()):
        benchmark.enter(item, each)
    if SCENARIO in beside:
        bdd.enter(report, beside[SCENARIO])
    xml = pytest_reports.junit_xml(item.config)
    if xml is None:
        return
    for name, value in beside.get(SUITE, ()):
        xml.add_global_property(name, value)
    if CASE in beside:
        xml.node_reporter(item.nodeid).attrs.update(beside[CASE])
