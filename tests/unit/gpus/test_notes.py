"""What follows from the notes of those who want GPUs: a table of cases, and a rule for all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.gpus import notes
from pytest_cudafork.gpus.notes import Measured
from pytest_cudafork.gpus.packing import Card, Request

CARD = Card("GPU-0", 100)


def note(share: int = 0, others: int | None = None, seen: float = 1.0) -> dict[str, Any]:
    """Return the note of one who waits, or holds a share of the card."""
    found: dict[str, Any] = {"pid": 1, "test": "t", "since": 0.0, "seen": seen}
    found["wish"] = notes.packed(Request(1, ("GPU-0",), memory=share))
    if share:
        found["holds"] = {"GPU-0": [share, 100]}
    if others is not None:
        found["others"] = {"GPU-0": others}
    return found


def strangers(
    used: int, now: dict[str, dict[str, Any]], before: dict[str, Any] | None = None
) -> int:
    """Return what strangers have of the card, measured when ``before`` were the holders."""
    holders = notes.holders(now) if before is None else notes.holders(before)
    (card,) = notes.with_strangers([CARD], now, Measured({"GPU-0": used}, holders, 0))
    return card.others


def test_a_note_is_written_and_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a.holder")
    assert notes.read(path) == {}
    wish = Request(2, ("GPU-0", "GPU-1"), memory=5, overtaken=3, kept=("GPU-1",))
    written = {**note(30), "wish": notes.packed(wish)}
    notes.write(path, written)
    assert notes.read(path) == written
    assert notes.unpacked(notes.read(path)["wish"]) == wish
    far = json.dumps({**written, "pid": 1}).replace('"pid": 1', '"pid": 1e999')
    for torn in ("torn {", "[]", '{"wish": 1}', '{"pid": 1}', "[" * 9000, far):
        Path(path).write_text(torn)
        assert notes.read(path) == {}
    notes.write(path, written)
    assert notes.read(path) == written, "nothing is left of a longer one"
    with pytest.raises(OSError, match="No such file"):
        notes.write(str(tmp_path / "none" / "a.holder"), written)


def test_a_note_is_changed_in_the_room_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.holder")
    notes.write(path, note(30))
    inode = os.stat(path).st_ino
    opened: list[int] = []
    really_open = os.open

    def see(path: str, flags: int, mode: int) -> int:
        opened.append(flags)
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", see)
    notes.write(path, note(20))
    assert os.stat(path).st_ino == inode
    assert not opened[0] & os.O_TRUNC, "what a full disk gives away it does not give back"


def test_who_holds_what() -> None:
    all_notes = {"waits": note(), "holds": note(30), "lost": {}}
    assert notes.holders(all_notes) == {"holds": {"GPU-0": [30, 100]}, "lost": None}
    assert notes.held([CARD, Card("GPU-1", 8)], all_notes) == {"GPU-0": [30, 100], "GPU-1": [8]}
    assert notes.held([Card("GPU-0", 8)], {"holds": note(30)}) == {"GPU-0": [3]}


def test_what_is_in_use_beyond_what_tests_hold_is_strangers() -> None:
    assert strangers(0, {}) == 0
    assert strangers(40, {}) == 40
    assert strangers(40, {"a": note(30)}) == 10
    assert strangers(40, {"a": note(30, others=25)}) == 25
    assert strangers(20, {"a": note(30, others=25)}) == 20
    assert strangers(40, {"a": note(30, 25, seen=1.0), "b": note(1, 15, seen=2.0)}) == 15
    assert strangers(40, {"waits": note()}) == 40
    assert strangers(40, {"lost": {}}) == 0


def test_what_came_or_went_during_the_measurement_may_be_strangers() -> None:
    a, b = note(30), note(20)
    assert strangers(40, {"a": a}, before={"a": a, "b": b}) == 10
    assert strangers(40, {"a": a, "b": b}, before={"a": a}) == 10
    assert strangers(40, {}, before={"a": a}) == 40
    assert strangers(40, {"a": a}, before={"a": note(29)}) == 40  # another of the same name


def test_what_may_be_a_tests_is_not_noted_as_strangers() -> None:
    a, b = note(30, others=5), note(20)
    measured = Measured({"GPU-0": 60}, notes.holders({"a": a, "b": b}), 0)
    cards = notes.with_strangers([CARD], {"a": a}, measured)
    assert cards[0].others == 30
    assert notes.strangers_to_note(cards, {"a": a}, measured) == {"GPU-0": 5}
    steady = measured._replace(holders=notes.holders({"a": a}))
    assert notes.strangers_to_note(cards, {"a": a}, steady) == {"GPU-0": 30}
    assert notes.strangers_to_note([CARD], {"a": a}, None) == {"GPU-0": 0}


SHARES = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), max_size=4)


@given(st.integers(0, 100), SHARES, SHARES)
def test_less_is_never_thought_of_strangers_than_all_that_tests_do_not_hold(
    used: int, before: dict[str, int], now: dict[str, int]
) -> None:
    found = strangers(
        used,
        {name: note(n) for name, n in now.items()},
        {name: note(n) for name, n in before.items()},
    )
    assert max(0, used - sum(now.values())) <= found <= used
