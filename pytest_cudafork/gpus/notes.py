"""What those who want GPUs note down beside their locks, and what follows from all notes together.

A note is a dictionary that travels as JSON: "pid" and "test", "since" (when one came), "seen" (when
one has looked last) and "wish"; from the moment that one has GPUs also "holds", the share of each
and the capacity that it is a share of, and "others", what strangers had then. {} stands for a note
that is lost: its entry holds everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pytest_cudafork.gpus import packing
from pytest_cudafork.gpus.packing import Card, Request

Notes = Mapping[str, dict[str, Any]]
"""Notes by the names of their entries."""


class Measured(NamedTuple):
    """What was in use at some moment, in bytes, by card, and who held what just before."""

    used: Mapping[str, int]
    holders: Mapping[str, Any]
    """As ``holders`` returns it."""
    changed: int
    """When entries had last come or gone."""


def packed(wish: Request) -> dict[str, Any]:
    """Return a wish as it stands in a note."""
    return {**wish._asdict(), "cards": list(wish.cards), "kept": list(wish.kept)}


def unpacked(data: dict[str, Any]) -> Request:
    """Return a wish that stands in a note."""
    return Request(**{**data, "cards": tuple(data["cards"]), "kept": tuple(data["kept"])})


def write(path: str, note: dict[str, Any]) -> None:
    """Write a note, over the one that is there: who has one needs no more room on the disk.

    Raises:
        OSError: there is no room for it.

    """
    with open(path, "wb", opener=_as_it_is) as file:
        file.write(json.dumps(note).encode())
        file.truncate()


def _as_it_is(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o600)


def read(path: str) -> dict[str, Any]:
    """Read a note; {} for one that is not there or is none."""
    try:
        with open(path, encoding="utf-8") as file:
            note = json.load(file)
        unpacked(note["wish"])
        float(note["since"]), float(note["seen"]), int(note["pid"]), str(note["test"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return {}
    return dict(note)


def holders(notes: Notes) -> dict[str, Any]:
    """Return what each holder holds, by its entry; None for one whose note is lost."""
    return {
        name: note.get("holds") for name, note in notes.items() if not note or note.get("holds")
    }


def held(cards: Sequence[Card], notes: Notes) -> dict[str, list[int]]:
    """Return what holders have of each card; who measured it otherwise has the same part of it."""
    found: dict[str, list[int]] = {card.name: [] for card in cards}
    for card in cards:
        for note in notes.values():
            if not note:
                found[card.name].append(card.capacity)
            elif card.name in (note.get("holds") or ()):
                share, capacity = note["holds"][card.name]
                found[card.name].append(-(-share * card.capacity // capacity))
    return found


def with_strangers(cards: Sequence[Card], notes: Notes, measured: Measured) -> list[Card]:
    """Return the cards with what strangers hold of them.

    Only what was held before the measurement and still is, is known to be no stranger's: what came
    or went meanwhile may have been measured or not.
    """
    steady = {
        name: notes[name]
        for name, holds in holders(notes).items()
        if measured.holders.get(name) == holds
    }
    claimed = held(cards, steady)
    return [
        card._replace(
            others=packing.held_by_others(
                measured.used.get(card.name, 0), sum(claimed[card.name]), _noted(card, notes)
            )
        )
        for card in cards
    ]


def strangers_to_note(
    cards: Sequence[Card], notes: Notes, measured: Measured | None
) -> dict[str, int]:
    """Return what a new holder notes of strangers: no more than before if holders came or went.

    For then it may be a test's, and what is noted is believed as long as so much is in use.
    """
    if measured is None or measured.holders == holders(notes):
        return {card.name: card.others for card in cards}
    return {card.name: min(card.others, _noted(card, notes)) for card in cards}


def _noted(card: Card, notes: Notes) -> int:
    """Return what the newest holder of a card has noted of strangers."""
    having = [note for note in notes.values() if card.name in (note.get("holds") or ())]
    if not having:
        return 0
    newest = max(having, key=lambda note: float(note["seen"]))
    return int(newest.get("others", {}).get(card.name, 0))
