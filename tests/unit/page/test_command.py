"""``python -m pytest_cudafork html``: a page, or one line that says why not."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.page import command
from tests.support import session_documents as sessions

pytest.importorskip("jinja2", reason="makes the page")


def run(*args: str | Path) -> int:
    """Run the command; return its exit status."""
    try:
        return command.main([str(arg) for arg in args])
    except SystemExit as end:
        return int(end.code or 0)


def written(path: Path, document: Any) -> Path:
    """Return the path of a file with this as JSON."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_the_page_is_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(written(tmp_path / "s.json", sessions.full()), page) == 0
    assert capsys.readouterr().out == f"HTML: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_half_of_a_character_is_shown_by_its_number(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(written(tmp_path / "s.json", sessions.hostile()), page) == 0
    assert "\\udcff" in page.read_text(encoding="utf-8")


def test_the_document_may_come_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(sessions.document()).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert run("-", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").exists()


def test_what_waits_for_a_writer_or_has_no_end_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in (str(pipe), "/dev/zero"):
        assert run(name, tmp_path / "page.html") == 2
        assert f"{name}: is a pipe or a device" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert run("-", tmp_path / "page.html") == 2
    assert "there is no standard input" in capsys.readouterr().err


def test_what_a_shell_puts_in_the_place_of_a_command_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        json.dump(sessions.document(), pipe)
    try:
        assert run(f"/dev/fd/{reading}", tmp_path / "page.html") == 0
    finally:
        os.close(reading)


WRONG = {
    "no JSON": ("{", "is no JSON"),
    "too deep": ("[" * 100_000, "is no JSON"),
    "no text": ("\udcff", "is no JSON"),
    "a list": ("[]", "is no document of pytest-cudafork"),
    "another program's": ('{"format": "x"}', "is no document of pytest-cudafork"),
    "another version": (
        json.dumps({**sessions.document(), "format_version": 2}),
        "has version 2 of the form, and this release reads 1",
    ),
    "an audit": (json.dumps({**sessions.document(), "kind": "audit"}), "is about 'audit'"),
    "a head alone": (
        '{"format": "pytest-cudafork", "format_version": 1, "kind": "session"}',
        "has the head of a session's document but not its form (KeyError",
    ),
    "a wrong type": (
        json.dumps({**sessions.document(), "tests": [{"test": 3}]}),
        "has the head of a session's document but not its form",
    ),
    "a number without end": (
        json.dumps({**sessions.document(), "seconds": float("inf")}),
        "has the head of a session's document but not its form (OverflowError",
    ),
    "a number that is text": (
        json.dumps({**sessions.document(), "seconds": "1;}</style>"}),
        "has the head of a session's document but not its form (TypeError",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_document_of_a_session_is_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = WRONG[kind]
    source = tmp_path / "s.json"
    source.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert run(source, tmp_path / "page.html") == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m pytest_cudafork html: error: ")
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_files_that_cannot_be_read_or_written_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path / "s.json", sessions.document())
    assert run(tmp_path / "none.json", tmp_path / "page.html") == 2
    assert "none.json" in capsys.readouterr().err
    assert run(source, tmp_path / "none" / "page.html") == 2
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "serve.py").write_text("pass")
    assert run(source, tmp_path / "serve.py") == 2
    assert "is a Python file" in capsys.readouterr().err
    assert (tmp_path / "serve.py").read_text() == "pass"
    assert run(source, source) == 2
    assert "would be written over the session's JSON" in capsys.readouterr().err
    assert json.loads(source.read_text()) == sessions.document()


def test_without_jinja_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert run(tmp_path / "s.json", tmp_path / "page.html") == 2
    assert "pip install pytest-cudafork[html]" in capsys.readouterr().err
