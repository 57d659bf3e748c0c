"""What a session has to say of its baseline: what was accepted, what is new, what is gone.

An entry is gone if its statement is not in its file any more; or if the whole suite ran, the test
that the entry names passed, and the entry was seen nowhere. Where another line had initialized CUDA
in the process of that test, which may keep the entry's own from showing, nothing is said. Nor is it
where the entry's line initialized CUDA in another process: what forks comes after it as soon as the
tests run in another order, or are dealt out to workers in another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pytest_cudafork.baseline.culprit import is_gone
from pytest_cudafork.baseline.entries import FORK, POISONED, TOUCH, Accepted
from pytest_cudafork.check.accepted import Terms, accepted_records, kind_of, known_as
from pytest_cudafork.check.findings import Finding, expected_ids, find, reported_ids
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.story.images import moment_of
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.settings import Level

_JUDGED = {
    Level.POISON: (POISONED,),
    Level.FORK: (POISONED, FORK),
    Level.TOUCH: (POISONED, FORK, TOUCH),
}


class Seen(NamedTuple):
    """What was seen of one culprit: where, and how often."""

    what: Accepted
    places: list[str]
    times: int


class BaselineResult(NamedTuple):
    """What a session, or several together, found.

    Attributes:
        accepted: What the baseline accepts and was seen.
        new: What was an error and has a culprit.
        unknown: The number of errors without one, which no baseline can accept.
        missing: The entries whose statement is not there any more.
        quiet: The entries that were seen nowhere, though they would have shown.
        initialized: The entries for forks and children that were seen nowhere, though their line
            did initialize CUDA.

    """

    accepted: tuple[Seen, ...] = ()
    new: tuple[Seen, ...] = ()
    unknown: int = 0
    missing: tuple[Accepted, ...] = ()
    quiet: tuple[Accepted, ...] = ()
    initialized: tuple[Accepted, ...] = ()

    @property
    def seen(self) -> dict[Accepted, list[str]]:
        """All that was seen, and where."""
        return {each.what: each.places for each in (*self.accepted, *self.new)}

    def to_plain(self) -> dict[str, Any]:
        """Return it as the ledger holds it."""
        return {
            "accepted": [[each.what.to_list(), each.places, each.times] for each in self.accepted],
            "new": [[each.what.to_list(), each.places, each.times] for each in self.new],
            "unknown": self.unknown,
            "missing": [each.to_list() for each in self.missing],
            "quiet": [each.to_list() for each in self.quiet],
            "initialized": [each.to_list() for each in self.initialized],
        }

    @classmethod
    def from_plain(cls, data: Any) -> BaselineResult:
        """Read ``to_plain``'s value.

        Raises:
            ValueError: It is none.

        """
        try:
            return cls(
                tuple(_seen(each) for each in data["accepted"]),
                tuple(_seen(each) for each in data["new"]),
                int(data["unknown"]),
                tuple(map(_entry, data["missing"])),
                tuple(map(_entry, data["quiet"])),
                tuple(map(_entry, data.get("initialized", ()))),  # a ledger of before had none
            )
        except (KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"no result of a session: {error!r}") from None


def _entry(data: Any) -> Accepted:
    found = Accepted.from_list(data)
    if found is None:
        raise ValueError(f"{data!r} is no entry of a baseline")
    return found


def _seen(data: Any) -> Seen:
    what, places, times = data
    return Seen(_entry(what), [str(place) for place in places], int(times))


def result_of(
    records: Sequence[Record],
    level: Level,
    root: str,
    terms: Terms | None,
    unreported: Iterable[Finding],
) -> BaselineResult:
    """Return what a session found, at its end.

    Args:
        records: Its ledger.
        level: That of its check.
        root: The folder to which files are relative.
        terms: What its baseline accepts; None: it has none.
        unreported: The errors that have failed no test.

    """
    history = History(records)
    entries = terms.entries if terms is not None else {}
    accepted = _Tally()
    by_id = {str(record.get("id")): record for record in records}
    for record_id, by in accepted_records(records):
        if record_id in by_id:
            accepted.add(by, by_id[record_id])
    for record in records:
        if record["k"] == "fork" and record.get("verdict") == "accepted":
            first = history.initializer(int(record["pid"]), moment_of(record))
            accepted.add(known_as(FORK, first, root), record)
    new = _Tally()
    reported = reported_ids(records)
    failed = [f for f in find(records, level, expected=expected_ids(records)) if f.id in reported]
    for found in (*failed, *unreported):
        new.add(known_as(kind_of(found), found.cause(history), root), found.record)
    shown = accepted.seen.keys() | new.seen.keys()
    judged = [each for each in entries if each.kind in _JUDGED.get(level, ()) and each not in shown]
    initialized = _initialized(judged, history, root)
    places = {each: _passed_in(entries[each], records) for each in judged}
    return BaselineResult(
        accepted.result(),
        new.result(),
        new.unknown,
        tuple(each for each in entries if each not in shown and is_gone(each.culprit, root)),
        tuple(
            each
            for each, pids in places.items()
            if _would_show(each, pids, initialized.get(each), history, root)
        ),
        tuple(initialized),
    )


def _passed_in(place: str, records: Iterable[Record]) -> set[int]:
    """Return the processes in which the place that an entry names was passed."""
    return {int(r["pid"]) for r in records if r["k"] == "ran" and r.get("place") == place}


def _initialized(
    entries: Iterable[Accepted], history: History, root: str
) -> dict[Accepted, set[int]]:
    """Return the entries for forks and children whose line initialized CUDA, and the processes."""
    found: dict[Accepted, set[int]] = {each: set() for each in entries if each.kind != TOUCH}
    for touch in history.touches if found else ():
        for kind in (FORK, POISONED):
            known = known_as(kind, touch, root)
            if known in found and not touch.poisoned:
                found[known].add(touch.pid)
    return {each: pids for each, pids in found.items() if pids}


def _would_show(
    entry: Accepted,
    pids: set[int],
    initialized: set[int] | None,
    history: History,
    root: str,
) -> bool:
    """Whether the place that an entry names was passed, with nothing that hides it.

    Args:
        entry: The entry.
        pids: The processes in which its place was passed.
        initialized: Those that its line initialized; None: it is not about forks, or there is none.
        history: The session.
        root: The folder to which files are relative.

    """
    if initialized and not any(initialized & set(history.ancestors(pid)) for pid in pids):
        return False
    first = [history.initializer(pid) for pid in pids]
    others = [
        touch
        for touch in first
        if touch is not None and (entry.kind == TOUCH or known_as(entry.kind, touch, root) != entry)
    ]
    return bool(pids) and not others


class _Tally:
    """Counts what was seen, by culprit."""

    def __init__(self) -> None:
        self.seen: dict[Accepted, tuple[dict[str, None], list[str]]] = {}
        self.unknown = 0

    def add(self, what: Accepted | None, record: Record) -> None:
        """Count one record; None: nobody saw its culprit."""
        if what is None:
            self.unknown += 1
            return
        places, ids = self.seen.setdefault(what, ({}, []))
        places[Finding(record, CudaForkError).happened_at] = None
        ids.append(str(record.get("id")))

    def result(self) -> tuple[Seen, ...]:
        """Return what was counted."""
        return tuple(
            Seen(what, list(places), len(set(ids))) for what, (places, ids) in self.seen.items()
        )
