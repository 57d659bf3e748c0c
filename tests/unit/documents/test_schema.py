"""The schema is one, describes each of its parts, and refuses what is no document."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="jsonschema validates what is written")

import jsonschema

from pytest_cudafork.documents.form import FORMAT_VERSION, KINDS, head
from pytest_cudafork.documents.schema import PATH, read_schema
from tests.support.documents import validated

DOCTOR = {**head("doctor"), "version": "1", "status": 0, "findings": [], "facts": {}}


def test_it_is_a_schema_of_this_version() -> None:
    schema = read_schema()
    assert PATH.endswith("schema.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    properties = schema["$defs"]["head"]["properties"]
    assert properties["format_version"]["const"] == FORMAT_VERSION
    assert properties["kind"]["enum"] == list(KINDS)
    conditions = [each["if"]["properties"]["kind"]["const"] for each in schema["allOf"][1:]]
    assert conditions == list(KINDS), "each kind has a part of its own"


def test_all_keys_are_required_or_told_to_be_optional() -> None:
    optional = {
        f"{name}.{key}"
        for name, part in read_schema()["$defs"].items()
        for key in part.get("properties", {})
        if key not in part["required"]
    }
    assert optional == {"fork.test", "finding.test", "finding.phase", "finding.accepted"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "report"},
        {"format": "other"},
        {"format_version": 2},
        {"status": "bad"},
        {"findings": [{"level": "ok"}]},
        {"kind": "session"},
    ],
    ids=lambda each: ",".join(each),
)
def test_what_is_no_document_is_refused(wrong: dict[str, Any]) -> None:
    validated(DOCTOR, "doctor")
    with pytest.raises(jsonschema.ValidationError):
        validated({**DOCTOR, **wrong}, wrong.get("kind", "doctor"))


def test_a_document_with_more_keys_is_one_for_readers_and_told_in_our_tests() -> None:
    more = {**DOCTOR, "new": 1}
    jsonschema.Draft202012Validator(read_schema()).validate(more)
    with pytest.raises(jsonschema.ValidationError, match="new"):
        validated(more, "doctor")
