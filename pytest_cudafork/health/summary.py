"""The terminal's section on the GPU's health, gathered from the reports of all processes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.counted import count_of
from pytest_cudafork.health import fitness, words

_MOST_LINES = 10
_MIB = 1 << 20


class HealthSummary:
    """The plugin object of the process that hears of all tests."""

    def __init__(self) -> None:
        self._sick: dict[str, dict[str, Any]] = {}
        self._not_run: dict[str, set[str]] = {}
        self._elsewhere: dict[str, set[str]] = {}
        """By the test that broke their process: those after it, however often they were run."""
        self._kept: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report says of the GPU."""
        told, since = getattr(report, words.NAME, None), getattr(report, "isolated_since", "")
        if told is None and not since:  # nearly all of them
            return
        told = told if isinstance(told, dict) else {}
        if isinstance(told.get(words.SICK), dict):
            self._sick.setdefault(report.nodeid, told[words.SICK])
        if words.NOT_RUN in told:
            self._not_run.setdefault(str(told[words.NOT_RUN]), set()).add(report.nodeid)
        if isinstance(told.get(words.KEPT), int):
            self._kept[report.nodeid] = told[words.KEPT]
        if since and report.when == "setup":
            self._elsewhere.setdefault(since, set()).add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session of which tests were not run, or that has left its GPU sick."""
        if self._sick or self._not_run or fitness.unfit(session.config):
            fail_session(session, without_tests=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the first sick tests, and where device memory has stayed."""
        lines = [line for test, one in self._sick.items() for line in self._sick_lines(test, one)]
        lines += self._memory_lines()
        if lines:
            terminalreporter.section(words.SECTION)
        for line in lines:
            terminalreporter.write_line(line)

    def _sick_lines(self, test: str, told: dict[str, Any]) -> list[str]:
        healthy = told.get("last_healthy") or "none"
        lines = [f"last healthy: {healthy}, first sick: {test}", f"    {told.get('found')}"]
        # another plugin may have begun the test itself once more
        count = len(self._not_run.get(test, set()) - {test})
        if count:
            one = "test after it was not run: its process was broken"
            many = "tests after it were not run: their process was broken"
            lines.append(f"    {count_of(count, one, many)}")
        count = len(self._elsewhere.get(test, set()) - {test})
        if count:
            lines.append(f"    {count_of(count, 'test')} after it ran in a fresh process")
        return lines

    def _memory_lines(self) -> list[str]:
        largest = sorted(self._kept.items(), key=lambda pair: -pair[1])
        if not largest:
            return []
        lines = ["device memory that was still in use after a test, and not before it:"]
        lines += [f"    {size / _MIB:8.1f} MiB {test}" for test, size in largest[:_MOST_LINES]]
        if len(largest) > _MOST_LINES:
            lines.append(f"    and {len(largest) - _MOST_LINES} tests more")
        return [*lines, "    (fixtures of a wider scope may hold it, or what a module keeps)"]
