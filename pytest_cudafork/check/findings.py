"""Findings: which records of the ledger are errors at which level, and how they are told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.settings import Level, environment

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History
    from pytest_cudafork.observe.story.touch import Touch


SECTION = "CUDA and fork"
"""The title under which a failed test shows what it did besides its own failure."""
_MOST_OTHERS = 8


class Finding(NamedTuple):
    """One record that is an error."""

    record: Record
    error: type[CudaForkError | CudaTouchError | PoisonedTouchError]

    @property
    def id(self) -> str:
        """The record's id, under which it is marked as reported."""
        return str(self.record.get("id", ""))

    @property
    def nodeid(self) -> str:
        """The test in which it happened; "" outside tests."""
        return str(self.record.get("test", "")).rpartition(" (")[0]

    @property
    def place(self) -> str:
        """Where it happened, in one line."""
        from pytest_cudafork.observe.story.touch import Touch, frames_from
        from pytest_cudafork.observe.story.words import fork_place, headline

        if self.error is CudaForkError:
            what = "fork past the guard" if self._unguarded else "fork refused"
            return f"{what} at {fork_place(frames_from(self.record.get('stack', ())))}"
        return headline(Touch.from_record(self.record))

    @property
    def was_refused_here(self) -> bool:
        """Whether it is a fork that was refused in this very process."""
        return self.record.get("verdict") == "guarded" and self.record["pid"] == os.getpid()

    @property
    def _unguarded(self) -> bool:
        return self.record.get("verdict") == "unguarded"

    @property
    def at(self) -> tuple[str, int] | None:
        """The file and line to look at: of the fork, or of the touch."""
        from pytest_cudafork.observe.story.touch import Touch, culprit_of, frames_from

        if self.error is CudaForkError:
            frame = culprit_of(frames_from(self.record.get("stack", ())))
        else:
            frame = Touch.from_record(self.record).culprit
        return (frame.filename, frame.lineno) if frame is not None else None

    def cause(self, history: History) -> Touch | None:
        """The touch that it comes from; None if nobody saw it."""
        from pytest_cudafork.observe.story.images import moment_of
        from pytest_cudafork.observe.story.touch import Touch

        if self.error is CudaTouchError:
            return Touch.from_record(self.record)
        if self.error is CudaForkError:
            return history.initializer(int(self.record["pid"]), moment_of(self.record))
        return history.poisoner(Touch.from_record(self.record))

    def culprit(self, history: History) -> str:
        """The place of the touch that it comes from, by which its story is known; "" if unseen."""
        touch = self.cause(history)
        return touch.where if touch is not None else ""

    @property
    def happened_at(self) -> str:
        """The test in which it happened, or what the session did: "collect FILE", "start"."""
        return self.nodeid or str(self.record.get("phase") or "outside any test")

    def story(
        self, history: History, *, simulated: bool, told_at: str = "", raised: bool = False
    ) -> str:
        """Tell it in full, or in short if its culprit has been told at the test ``told_at``.

        ``raised`` says that its own error is what is shown, so nothing has swallowed that.
        """
        # Late: most sessions have nothing to tell.
        from pytest_cudafork.observe.story.images import moment_of
        from pytest_cudafork.observe.story.plain_text import plain
        from pytest_cudafork.observe.story.stories import (
            Within,
            fork_story,
            poison_story,
            touch_story,
        )
        from pytest_cudafork.observe.story.touch import Touch, frames_from

        if self.error is CudaForkError:
            test, phase = str(self.record.get("test", "")), str(self.record.get("phase", ""))
            return fork_story(
                history,
                int(self.record["pid"]),
                plain(str(self.record.get("api", "os.fork"))),
                frames_from(self.record.get("stack", ())),
                why=plain(str(self.record.get("state", ""))),
                simulated=simulated,
                fork_id="" if raised else self.id,
                told_at=told_at,
                refused=not self._unguarded,
                within=Within.of(self.nodeid, phase),
                during=plain(test or phase),
                moment=moment_of(self.record),
            )
        touch = Touch.from_record(self.record)
        if self.error is PoisonedTouchError:
            return poison_story(history, touch, simulated=simulated, told_at=told_at)
        may_fork = bool(self.nodeid) and environment.is_set(environment.FORK_OK)
        return touch_story(touch, told_at=told_at, may_fork=may_fork)

    def plain(self, history: History, *, simulated: bool) -> dict[str, Any]:
        """Return what was found as plain data, with its story."""
        return {
            "error": self.error.__name__,
            "place": self.place,
            "process": int(self.record["pid"]),
            "culprit": self.culprit(history),
            "story": self.story(history, simulated=simulated),
        }


def find(
    records: Iterable[Record],
    level: Level,
    *,
    isolated: bool = False,
    expected: Collection[str] = (),
) -> list[Finding]:
    """Pick the errors out of records.

    A touch in a poisoned process is one at every level; a touch in a pytest process at level
    ``touch``, unless that process was made for one ``isolated`` test. A fork that was refused is
    one, in whatever process, unless it is ``expected`` (see ``expected_ids``), and so is one that
    should have been, and was made past the guard.
    """
    findings = []
    for record in records:
        in_pytest = str(record.get("pid")) == str(record.get("owner"))
        if record["k"] == "touch":
            if record.get("poisoned"):
                findings.append(Finding(record, PoisonedTouchError))
            elif level is Level.TOUCH and in_pytest and not isolated:
                findings.append(Finding(record, CudaTouchError))
        elif (
            record["k"] == "fork"
            and record.get("verdict") in ("guarded", "unguarded")
            and str(record.get("id")) not in expected
        ):
            findings.append(Finding(record, CudaForkError))
    return findings


def find_in_session(records: Collection[Record], level: Level) -> list[Finding]:
    """Pick the errors out of the records of all processes of a session.

    A touch in a test of an isolated process is none, and only that process knows: what is one has
    failed the test, or was noted when its record came too late for that.
    """
    known = reported_ids(records) | late_ids(records)
    return [
        found
        for found in find(records, level, expected=expected_ids(records))
        if found.error is not CudaTouchError or not found.nodeid or found.id in known
    ]


def reported_ids(records: Iterable[Record]) -> set[str]:
    """The ids of the records that have failed a test or a collection."""
    ids: set[str] = set()
    for record in records:
        if record["k"] == "reported":
            ids.update(str(record_id) for record_id in record.get("ids", ()))
    return ids


def late_ids(records: Iterable[Record]) -> set[str]:
    """The ids of the errors whose records came when their test was over."""
    return {str(each) for r in records if r["k"] == "late" for each in r.get("ids", ())}


def expected_ids(records: Iterable[Record]) -> set[str]:
    """The ids of the refused forks whose error was caught by its name."""
    return {str(r.get("fork")) for r in records if r["k"] == "caught" and r.get("by_name")}


def worst(findings: list[Finding]) -> Finding:
    """Return what to tell first: a child that fails outweighs a touch that may do no harm yet."""
    return next((f for f in findings if f.error is not CudaTouchError), findings[0])


def tell(
    findings: list[Finding], history: History, *, simulated: bool, told: Mapping[str, str]
) -> str:
    """Tell the worst finding and the places of the others.

    Args:
        findings: One at least.
        history: The ledger so far.
        simulated: Whether the driver is the phantom.
        told: Of the culprits that have been told in full, the test at which that was done.

    """
    found = worst(findings)
    told_at = told.get(found.culprit(history), "")
    story = found.story(history, simulated=simulated, told_at=told_at)
    others = _other_places(findings)
    if not others:
        return story
    shown = [f"    {place}" for place in others[:_MOST_OTHERS]]
    left = len(others) - len(shown)
    if left:
        shown.append(f"    ... and {left} more (--cuda-fork-ledger=FILE keeps all)")
    return "\n".join([story, "", "also:", *shown])


def _other_places(findings: list[Finding]) -> list[str]:
    """One line for each place besides that of the worst finding, in order."""
    places = dict.fromkeys(found.place for found in findings)
    places.pop(worst(findings).place)
    return list(places)
