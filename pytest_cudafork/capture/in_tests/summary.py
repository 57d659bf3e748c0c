"""The terminal's section on captures, gathered from the reports of all processes."""

from __future__ import annotations

import pytest

from pytest_cudafork.capture.in_tests import words
from pytest_cudafork.capture.in_tests.gathered import Gathered
from pytest_cudafork.counted import count_of

_MOST = 10


class CaptureSummary:
    """The plugin object of the process that hears of all tests.

    Args:
        counts: Whether to say how much was looked at, also where nothing was found.
        to_add: What to say where nothing was: options to add, or why none would help; or "".

    """

    def __init__(self, *, counts: bool = False, to_add: str = "") -> None:
        self._counts = counts
        self._to_add = to_add
        self._gathered = Gathered()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report says of captures."""
        self._gathered.add(report)

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
        suspected = self._gathered.suspicions
        lines = [self._looked_at()] if self._counts else []
        if lines and self._to_add and not self._gathered.captures:
            lines.append(self._to_add)
        shown = suspected[: None if verbose else _MOST]
        if shown:
            suspicions = count_of(len(suspected), "suspicion")
            lines.append(f"{suspicions}, which may be meant so (they fail no test):")
        for found in shown:
            lines += words.suspicion(found, found["tests"])
        if len(suspected) > len(shown):
            lines.append(f"and {len(suspected) - len(shown)} more (-v shows them)")
        lines += words.gaps(
            self._gathered.not_judged,
            self._gathered.judged,
            full=verbose,
            rest=" (-v shows them)",
        )
        if self._gathered.elsewhere:
            elsewhere = count_of(self._gathered.elsewhere, "capture")
            lines.append(f"not looked at: {elsewhere} of other threads")
        if self._gathered.replays_elsewhere:
            replays = count_of(self._gathered.replays_elsewhere, "replay")
            lines.append(
                f"not looked at: {replays} in other threads, or of graphs that nobody looked at "
                "when they were captured"
            )
        if self._gathered.silenced:
            lines.append(f"silenced by comments: {self._gathered.silenced}")
        return lines

    def _looked_at(self) -> str:
        captures, replays = self._gathered.captures, self._gathered.replays
        if not captures and self._gathered.elsewhere:
            return "looked at: nothing, as no test captured a graph in its own thread"
        if not captures:
            return "looked at: nothing, as no test that is looked at captured a graph by itself"
        return f"looked at: {count_of(captures, 'capture')}, {count_of(replays, 'replay')}"
