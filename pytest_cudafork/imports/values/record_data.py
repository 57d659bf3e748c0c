"""Owns records as plain data: for a report that travels between processes, and for JSON.

It does not know who sends or reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cudafork.imports.values.records import ImportRecord, Verdict
from pytest_cudafork.imports.worker.threads import RunningThread
from pytest_cudafork.observe.story.touch import Touch

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
    }


def from_plain(data: Mapping[str, Any]) -> ImportRecord:
    """Read what ``to_plain`` returned."""
    return ImportRecord(
        **{name: data[name] for name in _PLAIN},
        verdict=Verdict(data["verdict"]),
        touches=tuple(Touch.from_record(touch) for touch in data["touches"]),
        loaded=tuple(data["loaded"]),
        running=tuple(RunningThread(**thread) for thread in data["running"]),
    )


def _touch_to_plain(touch: Touch) -> dict[str, Any]:
    """Return a touch as the ledger has it."""
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
