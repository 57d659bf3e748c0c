"""Validates what is written for other programs: JSON by its schema, SARIF by a model of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.documents.schema import read_schema

for needed in ("jsonschema", "sarif_pydantic"):
    pytest.importorskip(needed, reason=f"{needed} validates what is written")

import jsonschema  # noqa: E402
import pydantic  # noqa: E402
from sarif_pydantic import Sarif  # noqa: E402


def closed(schema: Any) -> Any:
    """Return the schema for what this version writes: no object has a key that it does not name.

    Readers must take documents with more keys; but what is written now is described.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    is_object = made.get("type") == "object" and "properties" in made
    if is_object and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def _document_schema(kind: str) -> dict[str, Any]:
    """Return the schema of one kind, with its keys and those of the head, and no others."""
    definitions = closed(read_schema()["$defs"])
    name = {"audit": "audit_content"}.get(kind, kind)
    head, body = definitions["head"], definitions[name]
    whole = {
        "type": "object",
        "required": [*head["required"], *body["required"]],
        "properties": {**head["properties"], **body["properties"]},
        "additionalProperties": False,
    }
    return {**whole, "$schema": read_schema()["$schema"], "$defs": definitions}


def validated(document: Any, kind: str) -> dict[str, Any]:
    """Return a document of a kind that keeps to the schema, and says no more than that.

    Raises:
        jsonschema.ValidationError: it does not.

    """
    data: dict[str, Any] = json.loads(json.dumps(document))
    checker = jsonschema.Draft202012Validator
    checker(read_schema()).validate(data)
    checker(_document_schema(kind)).validate(data)
    assert data["kind"] == kind
    return data


def read_document(path: Path, kind: str) -> dict[str, Any]:
    """Return the document of a kind in a file, validated."""
    return validated(json.loads(path.read_text(encoding="utf-8")), kind)


_LEFT_OUT = ("columnKind", "suppressions", "toolExecutionNotifications")
"""What SARIF 2.1.0 has, by its own schema, and the models do not."""


def unknown_names(model: Any, place: str = "log") -> list[str]:
    """Return what a model holds that the format does not know: the models themselves take it."""
    if isinstance(model, list):
        return [
            name for n, each in enumerate(model) for name in unknown_names(each, f"{place}[{n}]")
        ]
    if not isinstance(model, pydantic.BaseModel):
        return []
    found = [f"{place}.{name}" for name in model.model_extra or () if name not in _LEFT_OUT]
    for name in type(model).model_fields:
        found += unknown_names(getattr(model, name), f"{place}.{name}")
    return found


def read_sarif(data: Any) -> list[dict[str, Any]]:
    """Return the results of a SARIF log that is one, as plain data."""
    model = Sarif.model_validate(data)
    assert model.version == "2.1.0"
    assert unknown_names(model) == []
    (run,) = data["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    results: list[dict[str, Any]] = run["results"]
    return results
