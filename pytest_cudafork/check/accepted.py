"""What the baseline accepts, in each process of a session.

The pytest process writes the entries into the ledger when the session begins, so that every
process knows them, with what is to become of the file. Here they meet findings and forks: one that
is accepted is no error, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError

if TYPE_CHECKING:
    from pytest_cudafork.baseline.entries import Accepted
    from pytest_cudafork.check.findings import Finding
    from pytest_cudafork.observe.base.records import Record
    from pytest_cudafork.observe.story.stories import History
    from pytest_cudafork.observe.story.touch import Touch

_MOST_AT_ONCE = 1000
"""Entries in one record of the ledger, whose lines have a longest length."""


class Notes(Protocol):
    """What is needed of the observer."""

    def records(self) -> list[Record]:
        """The ledger so far."""

    def history(self) -> History:
        """The same, with the questions that stories ask."""

    def note_baseline(self, **fields: object) -> None:
        """Write what the baseline accepts."""

    def note_accepted(self, ids: list[str], what: list[str]) -> None:
        """Write that these records are accepted, and by which entry."""


class Terms(NamedTuple):
    """What is accepted in this session.

    ``root`` is the folder to which files are relative; ``entries`` have a place where each was
    seen; ``everything`` says that the baseline is being written: whatever has a culprit.
    """

    root: str
    entries: dict[Accepted, str]
    everything: bool = False

    def accept(self, kind: str, touch: Touch | None) -> Accepted | None:
        """Return what accepts an error of this kind that comes from a touch; None if nothing does.

        A touch of which nobody saw the line is never accepted: it could be any.
        """
        found = known_as(kind, touch, self.root)
        return found if found is not None and (self.everything or found in self.entries) else None

    def rows(self) -> list[list[str]]:
        """Return the entries as plain lists, each with where it was seen."""
        return [[*each.to_list(), at] for each, at in self.entries.items()]

    def add_rows(self, rows: object) -> None:
        """Add the entries of such lists; what is none is left out."""
        from pytest_cudafork.baseline.entries import Accepted

        for row in rows if isinstance(rows, list) else ():
            *what, at = row if isinstance(row, list) and row else [None]
            accepted = Accepted.from_list(what)
            if accepted is not None:
                self.entries[accepted] = str(at)


def known_as(kind: str, touch: Touch | None, root: str) -> Accepted | None:
    """Return what an error is known by in a baseline; None where nobody saw the culprit.

    Code that was made at run time tells nothing by its name: all that ``exec`` runs may have one.
    """
    from pytest_cudafork.baseline.culprit import identify
    from pytest_cudafork.baseline.entries import Accepted

    culprit = touch.culprit if touch is not None else None
    if culprit is None or culprit.is_generated:
        return None
    return Accepted(kind, identify(culprit, root))


def kind_of(finding: Finding) -> str:
    """Return as what a finding is accepted, one of ``entries.KINDS``."""
    from pytest_cudafork.baseline.entries import FORK, POISONED, TOUCH

    kinds = {CudaForkError: FORK, CudaTouchError: TOUCH, PoisonedTouchError: POISONED}
    return kinds[finding.error]


class Acceptance:
    """What the baseline accepts in this process; it is known from the ledger."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._terms: Terms | None = None
        self._looked = False
        self._forks: dict[int, Accepted | None] = {}
        """What accepts the forks of a process: that does not change once CUDA is initialized."""

    @property
    def terms(self) -> Terms | None:
        """What is accepted; None in a session without a baseline."""
        if not self._looked:
            self._terms = terms_in(self._notes.records())
            self._looked = True  # last: another thread may ask meanwhile
        return self._terms

    def begin(self, terms: Terms) -> None:
        """Write into the ledger what is accepted, for all processes that the session starts."""
        entries = terms.rows()
        for first in range(0, max(len(entries), 1), _MOST_AT_ONCE):
            some = entries[first : first + _MOST_AT_ONCE]
            self._notes.note_baseline(root=terms.root, everything=terms.everything, entries=some)
        self._terms, self._looked = terms, True

    def of_fork(self) -> str:
        """Return, in words, what accepts a fork of this process; "" if it is to be refused."""
        if self.terms is None:
            return ""
        pid = os.getpid()
        if self._forks.get(pid) is None:
            from pytest_cudafork.baseline.entries import FORK

            touch = self._notes.history().initializer(pid)
            self._forks[pid] = self.terms.accept(FORK, touch)
        accepted = self._forks[pid]
        return f"in the baseline: {accepted.words}" if accepted is not None else ""

    def left(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings that are not accepted, and note those that are."""
        terms = self.terms
        if terms is None or not findings:
            return findings
        left: list[Finding] = []
        accepted: dict[Accepted, list[str]] = {}
        history = self._notes.history()
        for found in findings:
            by = terms.accept(kind_of(found), found.cause(history))
            if by is None:
                left.append(found)
            else:
                accepted.setdefault(by, []).append(found.id)
        for by, ids in accepted.items():
            self._notes.note_accepted(ids, by.to_list())
        return left


def terms_in(records: Iterable[Record]) -> Terms | None:
    """Return what a ledger says is accepted; None if it has no baseline."""
    terms: Terms | None = None
    for record in records:
        if record["k"] != "baseline":
            continue
        if terms is None:
            terms = Terms(str(record.get("root")), {}, record.get("everything") is True)
        terms.add_rows(record.get("entries"))
    return terms


def accepted_records(records: Iterable[Record]) -> Iterator[tuple[str, Accepted]]:
    """Yield the ids of the records that were accepted, forks apart, each with its entry."""
    for record in records:
        if record["k"] != "accepted":
            continue
        from pytest_cudafork.baseline.entries import Accepted  # late: most sessions have none

        by = Accepted.from_list(record.get("what"))
        if by is not None:
            for each in record.get("ids", ()):
                yield str(each), by
