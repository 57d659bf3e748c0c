"""What an audit found, all records taken together: counts, culprit lines, differences."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pytest_cudafork.imports.audit.baseline import Baseline, Entry
from pytest_cudafork.imports.audit.confirm import CheckedRecord, agree
from pytest_cudafork.imports.graph.cuts import CulpritCuts, find_cuts
from pytest_cudafork.imports.graph.import_graph import ImportGraph, build_graph
from pytest_cudafork.imports.since.change_audit import ChangeAudit
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict, Outcome, outcome_of
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.settings.import_settings import ImportSettings


class Difference(NamedTuple):
    """What changes when a library is hidden.

    Attributes:
        library: Its name, or several joined by a plus sign.
        installed: Whether it is there at all; where not, to hide it changes nothing.
        freed: For each culprit line, the modules that touch there with the library, and are clean
            without it.
        lost: The modules that cannot be imported without it, and can with it.
        culprits: The lines that touch only where it is hidden, and what to do about each.
        same: Whether every verdict is the same without it.

    """

    library: str
    installed: bool
    freed: Mapping[str, tuple[str, ...]]
    lost: tuple[str, ...]
    culprits: tuple[CulpritCuts, ...]
    same: bool


@dataclass(frozen=True)
class Findings:
    """What an audit found.

    Attributes:
        checked: The records, in the order in which they came.
        found: All modules of the packages, those that were not selected included.
        settings: What the options say.
        baseline: The accepted modules, as they were at the start.
        base: The folder to which paths are shown relative.
        complete: Whether the audit came to its end.
        change: The change that was audited, and nothing else; None: all modules were.

    """

    checked: tuple[CheckedRecord, ...]
    found: Mapping[str, Sequence[FoundModule]]
    settings: ImportSettings
    baseline: Baseline
    base: str
    complete: bool = True
    change: ChangeAudit | None = None

    @cached_property
    def records(self) -> tuple[ImportRecord, ...]:
        """The records without what is said about them."""
        return tuple(each.record for each in self.checked)

    def outcome(self, record: ImportRecord) -> Outcome:
        """Return what a record means with these settings."""
        accepted = self.settings.update or self.baseline.accepts(record)
        return outcome_of(record.verdict, strict=self.settings.strict, accepted=accepted)

    def of_library(self, library: str) -> tuple[ImportRecord, ...]:
        """Return the records with a library hidden; "": with nothing hidden."""
        return tuple(record for record in self.records if record.without == library)

    @cached_property
    def main(self) -> tuple[ImportRecord, ...]:
        """The records that are drawn: with nothing hidden, or what there is."""
        hidden = [record.without for record in self.records]
        return self.of_library(min(hidden)) if hidden else ()

    @cached_property
    def graph(self) -> ImportGraph:
        """The imports of all packages."""
        return self._graph(self.main)

    @cached_property
    def culprits(self) -> list[CulpritCuts]:
        """The culprit lines and what to do about each, the one that most modules reach first."""
        touching = any(record.verdict.touched for record in self.main)
        return find_cuts(self.graph, self.main) if touching else []

    def _graph(self, records: Iterable[ImportRecord]) -> ImportGraph:
        return build_graph([each for modules in self.found.values() for each in modules], records)

    @cached_property
    def stale(self) -> list[Entry]:
        """The entries of the baseline that are to be removed."""
        return self.baseline.stale(self.records, self.names)

    @property
    def names(self) -> dict[str, list[str]]:
        """All modules of each package, by name."""
        excluded = bool(self.settings.exclude)  # what was left out may well exist
        return (
            {} if excluded else {key: [m.name for m in found] for key, found in self.found.items()}
        )

    @property
    def counts(self) -> dict[tuple[str, str], Counter[ImportVerdict]]:
        """How many records there are of each verdict, by package and hidden library."""
        counts: dict[tuple[str, str], Counter[ImportVerdict]] = {}
        for record in self.records:
            counts.setdefault((record.package, record.without), Counter())[record.verdict] += 1
        return counts

    @cached_property
    def differences(self) -> list[Difference]:
        """What each hidden library changes."""
        return [self._difference(library) for library in self.settings.without]

    def _difference(self, library: str) -> Difference:
        before = {record.module: record for record in self.of_library("")}
        after = self.of_library(library)
        freed: dict[str, list[str]] = {}
        lost, new = [], []
        for record in after:
            first = before.get(record.module)
            was = first.verdict if first is not None else None
            if (
                record.verdict is ImportVerdict.CLEAN
                and first is not None
                and first.verdict.touched
            ):
                freed.setdefault(first.where, []).append(record.module)
            if record.verdict is ImportVerdict.NOT_IMPORTABLE and was is ImportVerdict.CLEAN:
                lost.append(record.module)
            if record.verdict.touched and (first is None or first.where != record.where):
                new.append(record)
        order = sorted(freed, key=lambda where: (-len(freed[where]), where))
        culprits = find_cuts(self._graph(after), new) if new else []
        return Difference(
            library,
            all(map(_is_installed, library.split("+"))),
            {where: tuple(freed[where]) for where in order},
            tuple(lost),
            tuple(culprits),
            all(
                record.module in before and agree(before[record.module], record) for record in after
            ),
        )


def _is_installed(library: str) -> bool:
    """Whether a library's top-level package is there; to ask for more would import it."""
    try:
        return importlib.util.find_spec(library.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
