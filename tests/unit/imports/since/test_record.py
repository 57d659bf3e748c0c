"""The record of imports is read as it was written, and anything else is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cudafork.imports.since.record import (
    ImportsRecord,
    SeenFile,
    SeenImport,
    read_record,
    write_record,
)

RECORD = ImportsRecord(
    {"python": "3", "installed": {"a-1.dist-info": "x"}},
    {"pkg": "pkg/__init__.py", "pkg.a": "pkg/a.py", "pkg.space": ""},
    {
        "pkg/__init__.py": SeenFile("1"),
        "pkg/a.py": SeenFile("2", ("pkg.b", "os"), is_dynamic=True),
        "pkg/": SeenFile(""),
    },
    {
        "pkg::pkg": SeenImport(frozenset({"pkg/__init__.py"}), "clean"),
        "pkg::pkg.a": SeenImport(
            frozenset({"pkg/a.py", "pkg/"}), "touches", "pkg/a.py:1", frozenset({"pkg/made.py"})
        ),
        "pkg::pkg.space": SeenImport(None),
    },
    frozenset({"pkg/__init__.py"}),
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "record.json")
    write_record(path, RECORD)
    assert read_record(path) == RECORD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": 1}',
        '{"format": 3}',
        '{"format": 3, "files": 3}',
        "[" * 5_000,
    ],
)
def test_anything_else_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert read_record(str(path)) is None
    assert read_record(str(tmp_path / "not there")) is None
