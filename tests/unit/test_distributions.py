"""Metadata of installed distributions, whole and broken; a warning of any of it fails a test."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork import distributions

# What interrupted installations and full disks leave behind.
BROKEN = [None, b"", b"Name: engine\n", b"\xff\xfe", b"\0\0\0\0"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def put(site: Path, metadata: bytes | None) -> importlib.metadata.Distribution:
    info = site / "engine-1.0.dist-info"
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    importlib.invalidate_caches()
    return importlib.metadata.PathDistribution(info)


def test_what_whole_metadata_say_is_told(site: Path) -> None:
    found = put(site, b"Name: Engine\nVersion: 1.2+cu13\nRequires-Dist: x>=1\nRequires-Dist: y\n")
    assert distributions.field(found, "Name") == "Engine"
    assert distributions.field(found, "Summary") == ""
    assert distributions.version_of("engine") == "1.2+cu13"
    assert distributions.requirements_of("engine") == ["x>=1", "y"]


@pytest.mark.parametrize("metadata", BROKEN)
def test_what_broken_metadata_do_not_say_is_empty(site: Path, metadata: bytes | None) -> None:
    found = put(site, metadata)
    named = "engine" if metadata == b"Name: engine\n" else ""
    assert distributions.field(found, "Name") == named
    assert distributions.version_of("engine") == ""
    assert distributions.requirements_of("engine") == []


@pytest.mark.parametrize("name", ["surely-nobody-has-this", "a/b", "a\0b"])
def test_a_distribution_that_is_not_there_says_nothing(name: str) -> None:
    assert distributions.version_of(name) is None
    assert distributions.requirements_of(name) == []


def test_a_file_that_cannot_be_read_is_empty(site: Path) -> None:
    found = put(site, None)
    assert distributions.text(found, "RECORD") == ""
    (site / "engine-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe")
    assert distributions.text(found, "RECORD") == ""
    (site / "engine-1.0.dist-info" / "RECORD").write_text("engine.py,,\n")
    assert distributions.text(found, "RECORD") == "engine.py,,\n"


class NoMetadata(FileNotFoundError):
    """What Python 3.15 raises."""


@pytest.mark.parametrize("error", [NoMetadata, KeyError, UnicodeDecodeError])
def test_errors_of_any_release_are_taken_for_broken_metadata(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    class Newer:
        @property
        def metadata(self) -> Any:
            raise error(*(("utf-8", b"", 0, 1, "?") if error is UnicodeDecodeError else ()))

        requires = metadata

        def read_text(self, file: str) -> str:
            return str(self.metadata)

    newer: Any = Newer()
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: newer)
    assert distributions.field(newer, "Name") == ""
    assert distributions.text(newer, "RECORD") == ""
    assert distributions.version_of("engine") == ""
    assert distributions.requirements_of("engine") == []


def test_metadata_that_are_none_as_in_the_backport_say_nothing() -> None:
    backport: Any = SimpleNamespace(metadata=None)
    assert distributions.field(backport, "Name") == ""


def test_the_folder_that_a_distribution_was_installed_from_is_read() -> None:
    told = '{"url": "file:///my%20work/engine", "dir_info": {"editable": true}}'
    assert distributions.source_of(told) == ("/my work/engine", True)
    assert distributions.source_of('{"url": "file:///x", "dir_info": {}}') == ("/x", False)
    for text in ("", "no json", "[]", '{"url": "file:///x.whl", "archive_info": {}}'):
        assert distributions.source_of(text) is None
    assert distributions.source_of('{"url": "https://x/y", "dir_info": {}}') is None
