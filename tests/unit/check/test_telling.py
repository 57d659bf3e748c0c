"""How errors reach the reports: in full once, and with the culprit in the first line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.findings import Finding
from pytest_cudafork.check.refusal import Refusals, RefusedFork
from pytest_cudafork.check.telling import (
    Telling,
    longrepr_of,
    put_culprit_first,
    show_as_pytest,
    told_error,
)
from pytest_cudafork.errors import CudaForkError, CudaTouchError
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.stories import History

TOUCH: dict[str, Any] = {
    "k": "touch", "id": "t", "t": 1, "pid": 7, "entry": "cuInit",
    "stack": [["/src/engine.py", 3, "probe", 3]],
}  # fmt: skip
FORK: dict[str, Any] = {
    "k": "fork", "id": "f", "t": 2, "pid": 7, "verdict": "guarded",
    "stack": [["/src/launch.py", 9, "start", 3]],
}  # fmt: skip
HISTORY = History([TOUCH, FORK])
FOUND = Finding(FORK, CudaForkError)


def refusal(text: str = "the whole story") -> RefusedFork:
    """Return the error of the refused fork."""
    notes: Any = SimpleNamespace(note_caught=lambda fork, **place: None)
    return Refusals(notes).error(text, "f")


def telling_of(notes: list[tuple[str, str]]) -> Telling:
    """Return what a session tells with, and notes what it has told."""
    return Telling(lambda culprit, nodeid: notes.append((culprit, nodeid)), simulated=False)


def test_what_another_process_has_told_is_not_told_again() -> None:
    notes: list[tuple[str, str]] = []
    telling = telling_of(notes)
    telling.story([FOUND], HISTORY, "test_a")
    telling.reported("test_a", failed=True)
    telling.story([FOUND], HISTORY, "test_b")
    telling.reported("test_b", failed=True)
    assert notes == [("/src/engine.py:3", "test_a")]
    ((culprit, at),) = notes
    ledger = History([TOUCH, FORK, {"k": "told", "pid": 9, "culprit": culprit, "at": at}])
    assert "told in full at test_a" in telling_of([]).story([FOUND], ledger, "test_c")
    assert "told in full" not in telling_of([]).story([FOUND], ledger, "test_a")


def test_a_culprit_is_told_in_full_at_the_first_failure_that_shows_it() -> None:
    telling = telling_of([])
    assert "what to do:" in telling.story([FOUND], HISTORY, "test_a")
    telling.reported("test_a", failed=False)  # expected to fail: nobody reads it
    assert "what to do:" in telling.story([FOUND], HISTORY, "test_b")
    telling.reported("test_b", failed=True)
    assert "told in full at test_b" in telling.story([FOUND], HISTORY, "test_c")
    telling.reported("test_c", failed=True)
    again = telling.story([FOUND], HISTORY, "test_b")
    assert "what to do:" in again, "what a test has told is not shown if it runs once more"


def test_a_refusal_that_is_raised_is_shortened_where_its_culprit_is_known() -> None:
    telling = telling_of([])
    first, second, unknown = refusal(), refusal(), refusal()
    unknown.fork_id = "of another ledger"
    telling.shorten([first, unknown], HISTORY, "test_a")
    assert str(first) == str(unknown) == "the whole story"
    telling.reported("test_a", failed=True)
    telling.shorten([second], HISTORY, "test_b")
    assert "told in full at test_a" in str(second)
    assert str(second).startswith("fork refused at /src/launch.py:9: CUDA was initialized at ")


def test_a_failure_that_is_seen_twice_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    story = Finding.story

    def counted(self: Finding, history: History, **given: Any) -> str:
        told.append(self.id)
        return story(self, history, **given)

    monkeypatch.setattr(Finding, "story", counted)
    telling = telling_of([])
    telling.shorten([refusal()], HISTORY, "test_a")
    telling.reported("test_a", failed=True)
    again = refusal()
    for _ in ("it passes our hook", "its report is made"):
        telling.shorten([again], HISTORY, "test_b")
    assert told == ["f"]
    assert "told in full at test_a" in str(again)
    telling.reported("test_b", failed=True)
    telling.shorten([refusal()], HISTORY, "test_c")
    assert told == ["f", "f"], "another failure may show the same refusal"


def test_a_section_beside_a_refusal_does_not_tell_its_culprit_again() -> None:
    telling = telling_of([])
    telling.shorten([refusal(), second := refusal()], HISTORY, "test_a")
    assert "told in full at test_a, above" not in str(second), "it is shown first"
    assert "told in full at test_a, above" in telling.story([FOUND], HISTORY, "test_a")


def test_of_a_chain_the_first_to_be_raised_is_told_in_full() -> None:
    telling = telling_of([])
    telling.shorten([last := refusal(), first := refusal()], HISTORY, "test_a")
    assert str(first) == "the whole story"
    assert "told in full at test_a, above" in str(last)


def test_an_error_is_shown_by_its_message_alone() -> None:
    error: Any = told_error(FOUND, "the story")
    assert issubclass(type(error), CudaForkError)
    assert issubclass(type(error), pytest.fail.Exception)
    assert (str(error), error.pytrace, error.at) == ("the story", False, ("/src/launch.py", 9))
    assert type(error).__name__ == "CudaForkError"
    assert type(error).__module__ == "pytest_cudafork"


def test_beside_the_story_stand_its_first_line_and_the_users_place() -> None:
    shown = longrepr_of(told_error(FOUND, "fork refused\n\nand so on"))
    assert "and so on" in str(shown)
    assert str(shown.reprcrash) == "/src/launch.py:9: pytest_cudafork.CudaForkError: fork refused"


def test_other_errors_are_left_as_they_are() -> None:
    crash = SimpleNamespace(message="a\nb", path="x", lineno=1)
    put_culprit_first(SimpleNamespace(reprcrash=crash), ValueError())
    put_culprit_first("a text", CudaTouchError())
    assert (crash.message, crash.path) == ("a\nb", "x")
    put_culprit_first(SimpleNamespace(reprcrash=crash), CudaTouchError())
    assert (crash.message, crash.path) == ("a", "x")


@pytest.mark.parametrize("style", ["auto", "long", "short", "native", "line", "no"])
def test_a_told_error_reads_like_pytests_own(tmp_path: Path, style: str) -> None:
    file = tmp_path / "engine.py"
    file.write_text("import it\n\nvalue = it.touch()\n")
    record = {**TOUCH, "stack": [[str(file), 3, "<module>", 0]]}
    error = told_error(Finding(record, CudaTouchError), "touched here\n\n  and so on")
    shown = longrepr_of(error)
    before = str(shown)
    show_as_pytest(shown, error, style)
    text = str(shown)
    if style in ("native", "line", "no"):
        assert text == before
        return
    lines = text.splitlines()
    marked = [
        ">   value = it.touch()",
        "E   pytest_cudafork.CudaTouchError: touched here",
        "E",
        "E     and so on",
    ]
    place = f"{short_path(str(file))}:3: CudaTouchError"
    expected = [place, *marked] if style == "short" else [*marked, "", place]
    assert lines[-len(expected) :] == expected


def test_an_error_with_a_traceback_or_without_a_line_is_left_as_it_is() -> None:
    plain = ValueError("theirs")
    shown = longrepr_of(plain)
    before = str(shown)
    show_as_pytest(shown, plain, "auto")
    nowhere = told_error(Finding({**TOUCH, "stack": []}, CudaTouchError), "somewhere")
    told = longrepr_of(nowhere)
    show_as_pytest(told, nowhere, "auto")
    assert (str(shown), str(told)) == (before, "somewhere")
