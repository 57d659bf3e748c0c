"""The terminal's last section: what was seen, and the errors that no test tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.observe.base.ledger import Record
from pytest_cudafork.report.header import limits_of
from pytest_cudafork.settings.options import Settings

if TYPE_CHECKING:
    import pytest

    from pytest_cudafork.check.findings import Finding
    from pytest_cudafork.check.hooks import CheckHooks
    from pytest_cudafork.observe.observer import Observer
    from pytest_cudafork.observe.story.stories import History
    from pytest_cudafork.observe.story.touch import Touch

TITLE = "CUDA and fork"
_MOST_PLACES = 10
_AFTER_A_LOSS = (
    "What is lost may have been an error, so the session fails. The ledger is {ledger}: see to it"
    " that there is space and that no test removes it, or name another file by --cuda-fork-ledger."
)


class Counts(NamedTuple):
    """The numbers of the last section."""

    touches: int
    at_start: int
    at_collection: int
    in_tests: int
    guarded: int
    allowed: int
    poisoned: int

    @classmethod
    def of(cls, records: Iterable[Record]) -> Counts:
        """Count a ledger."""
        records = list(records)
        forks = [str(r.get("verdict")) for r in records if r["k"] == "fork"]
        touches = [r for r in records if r["k"] == "touch"]
        phases = [_phase(str(r.get("test", "")), str(r.get("phase", ""))) for r in touches]
        return cls(
            touches=len(touches),
            at_start=phases.count("start"),
            at_collection=phases.count("collection"),
            in_tests=phases.count("test"),
            guarded=forks.count("guarded"),
            allowed=forks.count("allowed") + forks.count("watched"),
            poisoned=sum(bool(r.get("poisoned")) for r in touches),
        )

    def line(self) -> str:
        """Return the numbers as one line."""
        where = (
            f" ({self.at_start} at start-up, {self.at_collection} at import or collection, "
            f"{self.in_tests} in tests)"
            if self.touches
            else ""
        )
        return (
            f"touches: {self.touches}{where}, forks guarded: {self.guarded}, "
            f"forks allowed while initialized: {self.allowed}, poisoned touches: {self.poisoned}"
        )


def _phase(test: str, phase: str) -> str:
    if test:
        return "test"
    return "collection" if phase.startswith("collect") else "start"


def write_summary(
    terminal: pytest.TerminalReporter, settings: Settings, observer: Observer, check: CheckHooks
) -> None:
    """Write the last section."""
    records = observer.records()
    counts = Counts.of(records)
    unreported = check.unreported(records)
    lost = check.lost(records)
    bad = bool(counts.guarded or counts.poisoned or unreported or lost)
    terminal.section(TITLE, red=bad, green=not bad, bold=bad)
    untold = [words for words in observer.untold_touches(records) if words not in lost]
    limits = (*limits_of(observer), *untold)
    if counts.touches or unreported:
        _write_stories(terminal, observer, records, unreported, advice=not bad)
    elif not limits and not lost:
        terminal.write_line("no touch of CUDA was seen")
    for words in lost:
        terminal.write_line(f"ERROR: {words}", red=True)
    if lost:
        terminal.write_line(f"  {_AFTER_A_LOSS.format(ledger=observer.settings.ledger)}")
    for limit in limits:
        terminal.write_line(f"not observable: {limit}", yellow=True)
    # Not green where something could not be seen: that is not the same as clean.
    good = not bad and not limits
    terminal.write_line(counts.line(), red=bad, green=good, yellow=not bad and not good, bold=True)
    if settings.ledger == observer.settings.ledger:
        terminal.write_line(f"ledger: {settings.ledger}")


def _write_stories(
    terminal: pytest.TerminalReporter,
    observer: Observer,
    records: list[Record],
    unreported: list[Finding],
    *,
    advice: bool,
) -> None:
    # Late: most sessions have nothing to tell.
    from pytest_cudafork.observe.story.plain_text import plain
    from pytest_cudafork.observe.story.stories import History
    from pytest_cudafork.observe.story.words import indent

    history = History(records)
    for line in summary_lines(history, advice=advice):
        terminal.write_line(line)
    for found in unreported:
        where = plain(found.nodeid or str(found.record.get("phase") or "outside any test"))
        terminal.write_line(f"ERROR: {where}, too late to fail a test:", red=True)
        for line in indent([found.story(history, simulated=observer.simulated)], "  "):
            terminal.write_line(line)


def summary_lines(history: History, *, advice: bool = True) -> list[str]:
    """Tell the touches at start-up, import and collection: one for each line, the first in full.

    ``advice`` is left out where a failure has given it.
    """
    from pytest_cudafork.observe.story.words import headline, indent, touch_lines

    lines: list[str] = []
    places: dict[str, list[Touch]] = {}
    for touch in history.touches:
        if not touch.test and not touch.poisoned:
            places.setdefault(touch.where, []).append(touch)
    shown = list(places.values())[:_MOST_PLACES]
    for number, touches in enumerate(shown):
        first = touches[0]
        times = f" (and {len(touches) - 1} more times)" if len(touches) > 1 else ""
        if number == 0:
            lines.append(f"touched at import or collection{times}:")
            lines.extend(indent(touch_lines(first, advice=advice), "  "))
        else:
            lines.append(f"also at {headline(first)}{times}")
    if len(places) > len(shown):
        lines.append(f"... and at {len(places) - len(shown)} more places")
    return lines
