"""The rules: which records of the ledger are errors at which level, and in which test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.base.ledger import Record
from pytest_cudafork.settings.options import Level

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History


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
