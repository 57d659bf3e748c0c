"""The terminal's last section: what was seen, and the errors that no test tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.observe.base.records import LET_THROUGH, Record
from pytest_cudafork.report.header import limits_of
from pytest_cudafork.settings.options import Settings

if TYPE_CHECKING:
    import pytest

    from pytest_cudafork.check.findings import Finding
    from pytest_cudafork.check.hooks import CheckHooks
    from pytest_cudafork.observe.observer import Observer
    from pytest_cudafork.report.ci_groups import Told

TITLE = "CUDA and fork"
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
    unguarded: int = 0
    elsewhere: int = 0

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
            allowed=sum(forks.count(each) for each in LET_THROUGH),
            poisoned=sum(bool(r.get("poisoned")) for r in touches),
            unguarded=forks.count("unguarded"),
            elsewhere=phases.count(""),
        )

    def line(self) -> str:
        """Return the numbers as one line."""
        elsewhere = f", {self.elsewhere} outside of tests" if self.elsewhere else ""
        where = (
            f" ({self.at_start} at start-up, {self.at_collection} at import or collection, "
            f"{self.in_tests} in tests{elsewhere})"
            if self.touches
            else ""
        )
        unguarded = f", forks past the guard: {self.unguarded}" if self.unguarded else ""
        return (
            f"touches: {self.touches}{where}, forks guarded: {self.guarded}{unguarded}, "
            f"forks allowed while initialized: {self.allowed}, poisoned touches: {self.poisoned}"
        )


def _phase(test: str, phase: str) -> str:
    if test:
        return "test"
    if phase.startswith("collect"):
        return "collection"
    return "start" if phase else ""  # between tests, or when all have run


def write_summary(
    terminal: pytest.TerminalReporter, settings: Settings, observer: Observer, check: CheckHooks
) -> None:
    """Write the last section."""
    from pytest_cudafork.check.findings import expected_ids, reported_ids
    from pytest_cudafork.check.hooks import host_words

    records = observer.records()
    counts = Counts.of(records)
    unreported = check.unreported(records)
    reported = reported_ids(records)
    expected = expected_ids(records)
    lost = check.lost(records)
    accepted = _accepted(records)
    poisoned = any(r.get("poisoned") and r.get("id") not in accepted for r in records)
    # What was reported has failed a test; a refusal that was expected is no error.
    bad = bool(reported or unreported or poisoned or lost)
    known = bool(accepted) and not bad
    untold = [words for words in observer.untold_touches(records) if words not in lost]
    limits = (*limits_of(observer), *untold, *host_words(records, "limits"))
    nothing = not (bad or accepted or limits or counts.touches or counts.guarded)
    named = settings.ledger == observer.settings.ledger
    if nothing and not named and terminal.verbosity < 0:
        return  # as pytest itself does with -q: what is in order is not told
    terminal.ensure_newline()  # with --no-summary pytest has not ended the line of its dots
    terminal.section(TITLE, red=bad, green=not bad and not known, yellow=known, bold=bad)
    if counts.touches or counts.guarded or unreported:
        option = terminal.config.option
        shown = option.tbstyle != "no" and not option.no_summary  # else a failure has told nothing
        told = reported if shown else ()
        story = Stories(records, told, expected, simulated=observer.simulated)
        story.write(terminal, unreported, advice=not bad or not (shown or unreported))
        check.summarized.update(found.id for found in unreported)
    elif not limits and not lost:
        terminal.write_line("no touch of CUDA was seen")
    for words in lost:
        terminal.write_line(f"ERROR: {words}", red=True)
    if lost:
        terminal.write_line(f"  {_AFTER_A_LOSS.format(ledger=observer.settings.ledger)}")
    for limit in limits:
        terminal.write_line(f"not observable: {limit}", yellow=True)
    # Not green where something could not be seen, or is accepted: that is not the same as clean.
    good = not bad and not limits and not accepted
    terminal.write_line(counts.line(), red=bad, green=good, yellow=not bad and not good, bold=True)
    for host in sorted(int(r["number"]) for r in records if r["k"] == "host"):
        name = next(r["name"] for r in records if r["k"] == "host" and r["number"] == host)
        terminal.write_line(f"host {host}: {name}")
    if named:
        terminal.write_line(f"ledger: {settings.ledger}")


def _accepted(records: Iterable[Record]) -> set[str]:
    """Return the ids of the records that are no errors because of the baseline."""
    from pytest_cudafork.check.accepted import accepted_records

    records = list(records)
    forks = {str(r.get("id")) for r in records if r.get("verdict") == "accepted"}
    return forks | {each for each, _ in accepted_records(records)}


class Stories:
    """What the last section tells of a ledger in which there is something to tell.

    Args:
        records: The ledger.
        told: The ids of what failures have told.
        expected: The ids of the refusals that a test expected.
        simulated: Whether the driver is the phantom.

    """

    def __init__(
        self,
        records: list[Record],
        told: Collection[str],
        expected: Collection[str],
        *,
        simulated: bool,
    ) -> None:
        # Late: most sessions have nothing to tell.
        from pytest_cudafork.observe.story.stories import History
        from pytest_cudafork.report.places import told_culprits

        self._history = History(records)
        self._expected = expected
        self._simulated = simulated
        self._told = dict.fromkeys(told_culprits(self._history, told), "its failure")
        """The culprits that have been told in full, and where."""

    def write(
        self, terminal: pytest.TerminalReporter, unreported: list[Finding], *, advice: bool
    ) -> None:
        """Write the places, and the stories that no failure has told: as a group if it is long."""
        from pytest_cudafork.report.ci_groups import write_group

        told = list(self._told_lines(unreported, advice=advice, verbose=terminal.verbosity > 0))
        write_group(terminal, f"{TITLE}: what was seen", told)

    def _told_lines(
        self, unreported: list[Finding], *, advice: bool, verbose: bool
    ) -> Iterator[Told]:
        from pytest_cudafork.observe.story.plain_text import plain
        from pytest_cudafork.report.ci_groups import Told
        from pytest_cudafork.report.places import (
            allowed_lines,
            fork_lines,
            import_lines,
            test_lines,
        )

        history = self._history
        for line in (
            *import_lines(history, advice=advice, told=self._told),
            *test_lines(history, verbose=verbose),
            *(allowed_lines(history) if verbose else ()),
        ):
            yield Told(line, {})
        for line in fork_lines(history, self._expected):
            yield Told(line, {"red": not line.endswith("all expected")})
        for found in unreported:
            where = plain(found.nodeid or str(found.record.get("phase") or "outside any test"))
            yield Told(f"ERROR: {where}, too late to fail a test:", {"red": True})
            for line in self._lines_of(found):
                yield Told(line, {})

    def _lines_of(self, found: Finding) -> list[str]:
        """Tell an error in full, unless its culprit was told before."""
        from pytest_cudafork.observe.story.words import indent

        culprit = found.culprit(self._history)
        told_at = self._told.get(culprit, "")
        story = found.story(self._history, simulated=self._simulated, told_at=told_at)
        if culprit:
            self._told.setdefault(culprit, "the first error here")
        return indent([story], "  ")
