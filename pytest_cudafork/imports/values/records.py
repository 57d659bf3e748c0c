"""What the audit says of one module: its verdict, the record with the reasons, and as plain data.

The plain form travels in pytest's reports between processes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cudafork.imports.values.left_behind import Files, RunningThread, Traces
from pytest_cudafork.observe.base.other_hosts import file_at_home
from pytest_cudafork.observe.story.touch import Frame, Touch


class ImportVerdict(enum.Enum):
    """What became of the import of one module in a process of its own."""

    CLEAN = "clean"
    TOUCHES = "touches"
    TOUCHES_THEN_FAILS = "touches, then fails to import"
    TOUCHES_THEN_CRASHES = "touches, then crashes"
    NOT_IMPORTABLE = "not importable"
    NOT_OBSERVABLE = "not observable"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"

    @property
    def touched(self) -> bool:
        """Whether the import initialized CUDA."""
        return self in _TOUCHED


_TOUCHED = (
    ImportVerdict.TOUCHES,
    ImportVerdict.TOUCHES_THEN_FAILS,
    ImportVerdict.TOUCHES_THEN_CRASHES,
)


class Outcome(enum.Enum):
    """What becomes of the test of one module."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ACCEPTED = "accepted"
    ERROR = "error"


def outcome_of(verdict: ImportVerdict, *, strict: bool = False, accepted: bool = False) -> Outcome:
    """Return the outcome that a verdict gives the module's test.

    Args:
        verdict: What became of the import.
        strict: Whether a module must be importable.
        accepted: Whether the baseline holds the module.

    """
    if verdict.touched and accepted:
        return Outcome.ACCEPTED
    if verdict is ImportVerdict.NOT_IMPORTABLE and not strict:
        return Outcome.SKIPPED
    return {
        ImportVerdict.CLEAN: Outcome.PASSED,
        ImportVerdict.NOT_OBSERVABLE: Outcome.ERROR,
    }.get(verdict, Outcome.FAILED)


@dataclass(frozen=True)
class ImportRecord:
    """One module's verdict.

    Attributes:
        module: Its full name.
        package: The package that was asked for.
        verdict: What became of it.
        without: The library that was hidden, or "".
        touches: The first touch and, if another library made it, the second. A module that ran
            out of time or memory may have touched before.
        reason: Why it could not be imported or observed, how it crashed; one line.
        output: The end of what it wrote.
        seconds: How long its import took.
        confirmed: Whether a fresh interpreter said the same; None if none was asked.
        loaded: The modules that its import added to ``sys.modules``, itself included.
        running: The threads that its import has left running, after they were waited for.
        traces: What else it has left or read; None if nobody asked.
        files: The files that it executed or read; None if nobody asked, or nobody knows.

    """

    module: str
    package: str
    verdict: ImportVerdict
    without: str = ""
    touches: tuple[Touch, ...] = ()
    reason: str = ""
    output: str = ""
    seconds: float = 0.0
    confirmed: bool | None = None
    loaded: tuple[str, ...] = ()
    running: tuple[RunningThread, ...] = ()
    traces: Traces | None = None
    files: Files | None = None

    @property
    def so_far(self) -> bool:
        """Whether it is clean as far as could be seen: a thread that it has started still runs."""
        return self.verdict is ImportVerdict.CLEAN and bool(self.running)

    @property
    def culprit(self) -> Frame | None:
        """The line that touched first, if Python was running."""
        return self.touches[0].culprit if self.touches else None

    @property
    def where(self) -> str:
        """The culprit as ``file:line``, by which modules are grouped; "" if nothing touched."""
        return self.touches[0].where if self.touches else ""


_PLAIN = ("module", "package", "without", "reason", "output", "seconds", "confirmed")


def to_plain(record: ImportRecord) -> dict[str, Any]:
    """Return a record as lists, dicts, texts and numbers.

    ``where`` and ``scope`` are there for readers; ``from_plain`` does without them.
    """
    culprit = record.culprit
    return {
        **{name: getattr(record, name) for name in _PLAIN},
        "verdict": record.verdict.value,
        "where": record.where,
        "scope": culprit.scope.value if culprit else "",
        "touches": [_touch_to_plain(touch) for touch in record.touches],
        "loaded": list(record.loaded),
        "running": [thread._asdict() for thread in record.running],
        "traces": None if record.traces is None else record.traces.to_plain(),
        "files": None if record.files is None else [list(each) for each in record.files],
    }


def from_plain(data: Mapping[str, Any]) -> ImportRecord:
    """Read what ``to_plain`` returned."""
    return ImportRecord(
        **{name: data[name] for name in _PLAIN},
        verdict=ImportVerdict(data["verdict"]),
        touches=tuple(Touch.from_record(touch) for touch in data["touches"]),
        loaded=tuple(data["loaded"]),
        running=tuple(RunningThread(**thread) for thread in data["running"]),
        traces=None if data.get("traces") is None else Traces.from_plain(data["traces"]),
        files=None if data.get("files") is None else Files(*map(tuple, data["files"])),
    )


def at_home(data: Any, there: str, here: str) -> Any:
    """Return plain data of a worker elsewhere with the files of another folder.

    Args:
        data: What ``to_plain`` returned there, or a part of it.
        there: The folder whose files it names.
        here: The folder that has files of the same names.

    """
    if isinstance(data, Mapping):
        return {key: at_home(value, there, here) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [at_home(value, there, here) for value in data]
    return file_at_home(data, there, here) if isinstance(data, str) else data


def _touch_to_plain(touch: Touch) -> dict[str, Any]:
    """Return a touch as the ledger has it, which is what ``Touch.from_record`` reads."""
    return {
        "id": touch.id,
        "pid": touch.pid,
        "t": touch.time_ns,
        "owner": touch.owner,
        "witness": touch.witness,
        "entry": touch.entry,
        "library": touch.library,
        "poisoned": touch.poisoned,
        "again": touch.again,
        "test": touch.test,
        "phase": touch.phase,
        "stack": [[each.filename, each.lineno, each.name, each.flags] for each in touch.frames],
    }
