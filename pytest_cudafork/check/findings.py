"""Findings: which records of the ledger are errors at which level, and how they are told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.base.ledger import Record
from pytest_cudafork.settings.options import Level

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History


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
        from pytest_cudafork.observe.story.words import fork_line, headline

        if self.error is CudaForkError:
            return (
                "fork refused at "
                + fork_line(frames_from(self.record.get("stack", ()))).split("\n")[0]
            )
        return headline(Touch.from_record(self.record))

    def story(self, history: History, *, simulated: bool) -> str:
        """Tell it in full."""
        # Late: most sessions have nothing to tell.
        from pytest_cudafork.observe.story.stories import fork_story, poison_story, touch_story
        from pytest_cudafork.observe.story.touch import Touch, frames_from

        if self.error is CudaForkError:
            return fork_story(
                history,
                int(self.record["pid"]),
                str(self.record.get("api", "os.fork")),
                frames_from(self.record.get("stack", ())),
                why=str(self.record.get("state", "")),
                simulated=simulated,
            )
        touch = Touch.from_record(self.record)
        if self.error is PoisonedTouchError:
            return poison_story(history, touch, simulated=simulated)
        return touch_story(touch)


def find(records: Iterable[Record], level: Level, *, isolated: bool = False) -> list[Finding]:
    """Pick the errors out of records.

    A touch in a poisoned process is one at every level; a touch in a pytest process at level
    ``touch``, unless that process was made for one ``isolated`` test. A fork that was refused in
    the pytest process has raised its error there; one that was refused in a process below it may
    have gone unnoticed, so it is found here.
    """
    findings = []
    for record in records:
        in_pytest = str(record.get("pid")) == str(record.get("owner"))
        if record["k"] == "touch":
            if record.get("poisoned"):
                findings.append(Finding(record, PoisonedTouchError))
            elif level is Level.TOUCH and in_pytest and not isolated:
                findings.append(Finding(record, CudaTouchError))
        elif record["k"] == "fork" and record.get("verdict") == "guarded" and not in_pytest:
            findings.append(Finding(record, CudaForkError))
    return findings


def reported_ids(records: Iterable[Record]) -> set[str]:
    """The ids of the records that have failed a test or a collection."""
    ids: set[str] = set()
    for record in records:
        if record["k"] == "reported":
            ids.update(str(record_id) for record_id in record.get("ids", ()))
    return ids


def worst(findings: list[Finding]) -> Finding:
    """Return what to tell first: a child that fails outweighs a touch that may do no harm yet."""
    return next((f for f in findings if f.error is not CudaTouchError), findings[0])


def tell(findings: list[Finding], records: Iterable[Record], *, simulated: bool) -> str:
    """Tell the worst finding in full and the places of the others.

    Args:
        findings: One at least.
        records: The ledger so far.
        simulated: Whether the driver is the phantom.

    """
    from pytest_cudafork.observe.story.stories import History

    story = worst(findings).story(History(records), simulated=simulated)
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


def told_error(kind: type[RuntimeError], story: str) -> BaseException:
    """Make an error that pytest shows by its message alone.

    The message is the whole story, and the stack is that of our own hooks. pytest leaves the stack
    out for ``pytest.fail(pytrace=False)``, so the error is of that class too.
    """
    both = type(kind.__name__, (kind, pytest.fail.Exception), {"__module__": kind.__module__})
    error: BaseException = both(story)
    error.msg, error.pytrace = story, False  # type: ignore[attr-defined]
    return error
