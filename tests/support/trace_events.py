"""A schema of the Trace Event format: what a viewer needs of each kind of event.

It is narrower than the format where Perfetto is: numbers of processes and threads have 32 bits and
are not 0, an arrow is a number, begins and ends in a span of its row under one name and category,
and the spans of a row lie within each other or apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="jsonschema validates what is written")

import jsonschema

_NUMBER = {"type": "integer", "minimum": 1, "maximum": 0xFFFFFFFF}
_ROW = {"pid": _NUMBER, "tid": _NUMBER}
_TIME = {"ts": {"type": "number", "minimum": 0}}
_NAMED = {
    "name": {"type": "string", "minLength": 1},
    "cat": {"type": "string"},
    "args": {"type": "object"},
}
_ID = {"id": {"type": "integer", "minimum": 0, "maximum": (1 << 53) - 1}}
_METADATA = {
    "process_name": {"name": {"type": "string"}},
    "process_labels": {"labels": {"type": "string"}},
    "process_sort_index": {"sort_index": {"type": "integer"}},
    "thread_name": {"name": {"type": "string"}},
    "thread_sort_index": {"sort_index": {"type": "integer"}},
}


def _event(phase: str, required: list[str], **properties: Any) -> dict[str, Any]:
    """Return the schema of the events of one phase; no other key is known to viewers."""
    return {
        "type": "object",
        "required": ["ph", "pid", "tid", "name", *required],
        "properties": {"ph": {"const": phase}, **_ROW, **_NAMED, **properties},
        "additionalProperties": False,
    }


_EVENTS = {
    "X": _event("X", ["ts", "dur"], **_TIME, dur={"type": "number", "minimum": 0}),
    "i": _event("i", ["ts", "s"], **_TIME, s={"enum": ["g", "p", "t"]}),
    "s": _event("s", ["ts", "id", "cat"], **_TIME, **_ID),
    "f": _event("f", ["ts", "id", "cat"], **_TIME, **_ID, bp={"enum": ["e"]}),
    "M": {
        "anyOf": [
            _event(
                "M",
                ["args"],
                **_TIME,
                name={"const": name},
                args={
                    "type": "object",
                    "required": list(args),
                    "properties": args,
                    "additionalProperties": False,
                },
            )
            for name, args in _METADATA.items()
        ]
    },
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {
            "type": "array",
            "items": {
                "allOf": [
                    {"properties": {"ph": {"enum": list(_EVENTS)}}, "required": ["ph"]},
                    *(
                        {"if": {"properties": {"ph": {"const": phase}}}, "then": schema}
                        for phase, schema in _EVENTS.items()
                    ),
                ]
            },
        },
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
    },
    "additionalProperties": False,
}


def valid_events(trace: Any) -> list[dict[str, Any]]:
    """Return the events of a trace that is one: valid, and each arrow with a beginning.

    Raises:
        jsonschema.ValidationError: it is none.

    """
    data: dict[str, Any] = json.loads(json.dumps(trace))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    events: list[dict[str, Any]] = data["traceEvents"]
    _check_arrows(events)
    _check_spans(events)
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert named == {event["pid"] for event in events}, "each row has a name"
    return events


def _check_arrows(events: list[dict[str, Any]]) -> None:
    begun = {_arrow(event) for event in events if event["ph"] == "s"}
    ended = {_arrow(event) for event in events if event["ph"] == "f"}
    assert ended <= begun, f"arrows from nowhere: {ended - begun}"
    for event in events:
        if event["ph"] in ("s", "f"):
            row, at = (event["pid"], event["tid"]), event["ts"]
            assert any(
                each["ts"] < at < each["ts"] + each["dur"]
                for each in events
                if each["ph"] == "X" and (each["pid"], each["tid"]) == row
            ), f"an arrow that no span holds: {event}"


def _arrow(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["id"], event["name"], event["cat"]


def _check_spans(events: list[dict[str, Any]]) -> None:
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in events:
        if each["ph"] == "X":
            times = (each["ts"], each["ts"] + each["dur"])
            rows.setdefault((each["pid"], each["tid"]), []).append(times)
    for row, spans in rows.items():
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            # a nanosecond is what remains of sums of microseconds
            within = not open_until or end <= open_until[-1] + 0.0015
            assert within, f"spans of row {row} overlap: {begin} to {end}, and to {open_until[-1]}"
            open_until.append(end)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events in a file, validated."""
    return valid_events(json.loads(path.read_text(encoding="utf-8")))
