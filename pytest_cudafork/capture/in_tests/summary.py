"""The terminal's section on captures, gathered from the reports of all processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_cudafork.capture.in_tests import words

__all__ = ["CaptureSummary"]

_MOST = 10


class CaptureSummary:
    """The plugin object of the process that hears of all tests."""

    def __init__(self) -> None:
        self._suspicions: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
        self._not_judged: dict[str, int] = {}
        self._judged = self._silenced = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report says of captures."""
        told = getattr(report, words.NAME, None)
        if not isinstance(told, dict):
            return
        for found in told.get("suspicions", ()):
            key = json.dumps([found["kind"], found["lines"]])
            _, tests = self._suspicions.setdefault(key, (found, []))
            if report.nodeid not in tests:
                tests.append(report.nodeid)
        for why, count in told.get("not_judged", {}).items():
            self._not_judged[why] = self._not_judged.get(why, 0) + count
        self._judged += told.get("judged", 0)
        self._silenced += told.get("silenced", 0)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """List suspicions, and what could not be judged."""
        lines = self.lines(verbose=config.option.verbose > 0)
        if lines:
            terminalreporter.section(words.SECTION)
        for line in lines:
            terminalreporter.write_line(line)

    def lines(self, *, verbose: bool) -> list[str]:
        """Return the lines of the section; none: there is nothing to tell."""
        lines = []
        shown = list(self._suspicions.values())[: None if verbose else _MOST]
        if shown:
            count = len(self._suspicions)
            suspicions = "1 suspicion" if count == 1 else f"{count} suspicions"
            lines.append(f"{suspicions}, which may be meant so (they fail no test):")
        for found, tests in shown:
            lines += words.suspicion(found, tests)
        if len(self._suspicions) > len(shown):
            lines.append(f"and {len(self._suspicions) - len(shown)} more (-v shows them)")
        lines += self._gaps(verbose)
        if self._silenced:
            lines.append(f"silenced by comments: {self._silenced}")
        return lines

    def _gaps(self, verbose: bool) -> list[str]:
        if not self._not_judged:
            return []
        count = sum(self._not_judged.values())
        lines = [f"not judged: {count} of {self._judged} values that graphs read and that lines "
                 "before their capture computed"]  # fmt: skip
        gaps = sorted(self._not_judged.items(), key=lambda pair: -pair[1])
        shown = gaps if verbose else gaps[:3]
        lines += [f"    {why}" for why, _ in shown]
        if len(gaps) > len(shown):
            lines.append(f"    and {len(gaps) - len(shown)} more (-v shows them)")
        return lines
