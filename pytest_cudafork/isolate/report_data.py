"""Reports as plain data, with what they say beyond pytest's own serialization.

Used in the child (``pack``) and in the parent (``load``).

pytest turns a representation other than a traceback (an unknown fixture, a doctest) into text when
it serializes a report; then it is shown without colors, and once more in the short summary. The
counts of failed subtests, the properties of the whole suite and the attributes of a test case in
the JUnit file are in no report at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.unpatched import io
from pytest_cudafork.process.protocol import frames

_SHOWN = "_cudafork_shown"
_SUBTESTS = "_cudafork_subtests"
_SUITE = "_cudafork_suite"
_CASE = "_cudafork_case"


class Shown(pytest_internals.TerminalRepr):
    """A representation that was made in another process: its text, with and without colors."""

    def __init__(self, plain: str, marked: str) -> None:
        self._plain = plain
        self._marked = marked

    def toterminal(self, tw: Any) -> None:
        """Write it as it would have been written in the other process."""
        tw.write(self._marked if tw.hasmarkup else self._plain)


class ReportPacker:
    """Makes plain data of the reports of one process.

    Args:
        config: The configuration of the child's session.

    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._xml: Any = None
        self._told = 0

    def begin(self) -> None:
        """Begin in the child, after a fork if there is one: what is there is told already."""
        self._xml = pytest_internals.junit_xml(self._config)
        self._told = 0 if self._xml is None else len(self._xml.global_properties)

    def pack(self, report: pytest.TestReport) -> dict[str, Any]:
        """Return a report as plain data for ``load``."""
        config = self._config
        data: Any = config.hook.pytest_report_to_serializable(config=config, report=report)
        longrepr: Any = report.longrepr
        if isinstance(data.get("longrepr"), str) and hasattr(longrepr, "toterminal"):
            data[_SHOWN] = _rendered(longrepr)
        failed = _failed_subtests(config, report)
        if failed:
            data[_SUBTESTS] = failed
        if self._xml is not None:
            self._add_xml(report, data)
        packed: dict[str, Any] = frames.plain(data)
        return packed

    def _add_xml(self, report: pytest.TestReport, data: dict[str, Any]) -> None:
        told, self._told = self._told, len(self._xml.global_properties)
        if self._told > told:
            data[_SUITE] = self._xml.global_properties[told:]
        names = (report.nodeid, getattr(report, "id", None))  # pytest 9.2 has an object for it
        for key, reporter in self._xml.node_reporters.items():
            if key[0] in names and reporter.attrs:
                data[_CASE] = dict(reporter.attrs)


def load(item: pytest.Item, data: dict[str, Any]) -> pytest.TestReport:
    """Return a report of ``item`` from what ``pack`` made, and enter what it says beside itself.

    Raises:
        LookupError: It is no report.
        TypeError: Likewise.

    """
    config = item.config
    beside = {key: data.pop(key) for key in (_SHOWN, _SUBTESTS, _SUITE, _CASE) if key in data}
    kwargs = pytest_internals.subtest_arguments(data)
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    if not isinstance(report, pytest.TestReport):
        raise TypeError(f"no report of a test: {type(report).__name__}")
    _share(item, report)
    if kwargs and hasattr(report, "context"):
        # pytest 9 takes the repr of these once more on the way back: i='1' for i=1
        object.__setattr__(report.context, "kwargs", kwargs)
    if beside.get(_SHOWN):
        plain, marked = beside[_SHOWN]
        report.longrepr = Shown(str(plain), str(marked))
    _enter(item, report, beside)
    return report


def _share(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a report have its item's own strings, as one made here has; sessions keep all reports."""
    report.nodeid = item.nodeid  # it may differ outside the root directory
    if tuple(report.location) == item.location:
        report.location = item.location
    known = {name: name for name in item.keywords}
    report.keywords = {known.get(name, name): value for name, value in report.keywords.items()}


def _enter(item: pytest.Item, report: pytest.TestReport, beside: Mapping[str, Any]) -> None:
    """Put what stands beside a report where this session keeps it."""
    counts = pytest_internals.subtest_counts(item.config)
    if counts is not None and _SUBTESTS in beside:
        counts[getattr(report, "id", report.nodeid)] = int(beside[_SUBTESTS])
    xml = pytest_internals.junit_xml(item.config)
    if xml is None:
        return
    for name, value in beside.get(_SUITE, ()):
        xml.add_global_property(name, value)
    if _CASE in beside:
        xml.node_reporter(item.nodeid).attrs.update(beside[_CASE])


def _rendered(longrepr: Any) -> list[str] | None:
    """Return a representation without and with its colors; None if it cannot be written again."""
    texts = []
    for marked in (False, True):
        file = io.StringIO()
        writer = pytest_internals.terminal_writer(file, colors=marked)
        try:
            longrepr.toterminal(writer)
        except Exception:  # a plugin's own code; it was rendered once, which has to do
            return None
        texts.append(file.getvalue())
    return texts


def _failed_subtests(config: pytest.Config, report: pytest.TestReport) -> int:
    counts = pytest_internals.subtest_counts(config)
    return int(counts.get(getattr(report, "id", report.nodeid), 0)) if counts else 0
