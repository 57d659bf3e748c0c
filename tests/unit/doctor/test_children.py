"""The doctor's children are watched, and whatever becomes of one is an answer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_cudafork.doctor import children
from pytest_cudafork.doctor.children import ask
from tests.support.imports import TOUCH

pytestmark = pytest.mark.slow


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(children, "_CHILD", str(tmp_path))
    return tmp_path


def test_its_report_and_what_it_did_come_back(scripts: Path) -> None:
    (scripts / "one.py").write_text(
        f"import json, sys\n{TOUCH}\nprint('noise')\n"
        "open(sys.argv[2], 'w').write(json.dumps([sys.argv[1]]))"
    )
    answer = ask("one.py", "argument", timeout=300)
    assert (answer.report, answer.why) == (["argument"], "")
    assert answer.result is not None
    assert [touch.where for touch in answer.result.touches] == [f"{scripts}/one.py:2"]
    assert not Path(answer.result.command[-1]).parent.exists(), "the folder of the report is left"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise SystemExit('out of order')", "status 1"),
        ("raise SystemExit('out of order')", "out of order"),
        ("pass", "it said nothing"),
        ("import sys; open(sys.argv[1], 'w').write('{')", "it said nothing"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
def test_without_a_report_it_is_said_why(scripts: Path, text: str, words: str) -> None:
    (scripts / "one.py").write_text(text)
    answer = ask("one.py", timeout=300)
    assert answer.report is None
    assert words in answer.why


def test_one_that_never_ends_is_ended(scripts: Path) -> None:
    (scripts / "one.py").write_text("import threading; threading.Event().wait()")
    answer = ask("one.py", timeout=0.5)
    assert answer.report is None
    assert answer.why == "it did not end within 0.5 s"


def test_one_that_is_not_there_is_an_answer_too(scripts: Path) -> None:
    answer = ask("nope.py", timeout=300)
    assert (answer.report, answer.result) == (None, None)
    assert "nope.py" in answer.why


def test_where_no_temporary_folder_is_to_be_had_that_is_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> NoReturn:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    assert ask("one.py", timeout=300) == (None, None, "No usable temporary directory found")
