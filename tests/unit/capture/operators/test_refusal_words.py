"""How something that cannot be captured is refused: the words, the line, the first one is kept."""

from __future__ import annotations

import pytest

from pytest_cudafork.capture.operators.refusal_words import OPTIMIZER_TODO, Refusals, runs_in
from pytest_cudafork.errors import CaptureFailedError


def test_a_refusal_names_the_line_and_is_raised() -> None:
    refusals = Refusals()
    with pytest.raises(CaptureFailedError, match=r"tolist at .*_words.py:\d+ reads") as one:
        refusals.sync("tolist")
    assert one.value.finding is refusals.first
    assert one.value.finding.check == "host-sync"
    assert one.value.finding.where.startswith(__file__)


def test_the_first_refusal_is_kept() -> None:
    refusals = Refusals()
    for call in (refusals.sync, refusals.shape, refusals.host_data):
        with pytest.raises(CaptureFailedError):
            call("a call")
    assert refusals.first is not None
    assert "reads a value on the host" in refusals.first.what


def test_each_kind_has_words_of_its_own() -> None:
    words = []
    for name in ("sync", "shape", "host_data"):
        with pytest.raises(CaptureFailedError) as caught:
            getattr(Refusals(), name)("a call")
        words.append((caught.value.finding.why, caught.value.finding.todo))
    assert len(set(words)) == 3
    with pytest.raises(CaptureFailedError) as caught:
        Refusals().shape("a call", "another way")
    assert caught.value.finding.todo == "another way"


def test_a_place_without_lines_of_the_user_is_said() -> None:
    with pytest.raises(CaptureFailedError, match="a place without Python frames of yours"):
        Refusals().refuse("work at {where} failed", "why", "todo", where="")


def test_what_code_is_at_work_is_known_by_its_file() -> None:
    assert runs_in("test_refusal_words")
    assert not runs_in("no_such_file_at_all")


def test_within_an_optimizer_the_optimizer_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pytest_cudafork.capture.operators.refusal_words._OPTIMIZERS", "test_refusal_words"
    )
    with pytest.raises(CaptureFailedError) as caught:
        Refusals().sync("item")
    assert caught.value.finding.todo == OPTIMIZER_TODO
