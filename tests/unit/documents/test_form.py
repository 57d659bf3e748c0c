"""The head of a document, and touches as plain data."""

from __future__ import annotations

import json

import pytest

from pytest_cudafork._version import version
from pytest_cudafork.documents import form
from pytest_cudafork.documents.form import plain_stack
from pytest_cudafork.documents.schema import read_schema
from pytest_cudafork.observe.story.touch import Touch, frames_from

TOUCH = Touch.from_record(
    {
        "id": "1",
        "pid": 7,
        "entry": "cuInit",
        "test": "test_a.py::test_a (call)",
        "stack": [["/p/flags.py", 3, "<module>", 0], ["<frozen importlib._bootstrap>", 1, "f", 3]],
    }
)


@pytest.mark.parametrize("kind", form.KINDS)
def test_each_kind_has_the_same_head(kind: str) -> None:
    assert form.head(kind) == {
        "format": "pytest-cudafork",
        "format_version": 1,
        "kind": kind,
        "plugin_version": version,
    }


def test_a_touch_is_plain_data_with_its_lines_and_advice() -> None:
    data = form.plain_touch(TOUCH)
    assert json.loads(json.dumps(data)) == data
    assert (data["culprit"], data["at_import"]) == ("/p/flags.py:3", True)
    frame = {"file": "/p/flags.py", "line": 3, "function": "<module>", "code": ""}
    assert data["stack"][0] == frame, "the file cannot be read"
    assert data["imported_through"] == data["stack"][:1]
    assert data["advice"]
    here = plain_stack([frames_from([[__file__, 1, "<module>", 0]])[0]])
    assert here[0]["code"] == '"""The head of a document, and touches as plain data."""'
    assert data.keys() == read_schema()["$defs"]["touch"]["properties"].keys()
