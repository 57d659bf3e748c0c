"""A schema of the Trace Event format: what a viewer needs of each kind of event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="jsonschema validates what is written")

import jsonschema

_ROW = {"pid": {"type": "integer"}, "tid": {"type": "integer"}}
_TIME = {"ts": {"type": "number", "minimum": 0}}
_NAMED = {
    "name": {"type": "string", "minLength": 1},
    "cat": {"type": "string"},
    "args": {"type": "object"},
}
_ID = {"id": {"type": ["string", "integer"]}}
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
    begun = {event["id"] for event in events if event["ph"] == "s"}
    ended = {event["id"] for event in events if event["ph"] == "f"}
    assert ended <= begun, f"arrows from nowhere: {ended - begun}"
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert named == {event["pid"] for event in events}, "each row has a name"
    return events


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events in a file, validated."""
    return valid_events(json.loads(path.read_text(encoding="utf-8")))
