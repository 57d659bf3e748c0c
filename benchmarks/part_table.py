"""The rows of the table of parts, as ``bench_all.py --list`` shows them and the docs have them."""

from __future__ import annotations

from collections.abc import Mapping

from record_guard import TOPIC
from record_parts import Part

HEADER = ("part", "is", "minutes of a run, about", "runs", "needs", "kept in")


def rows(parts: Mapping[str, Part], rounds: int) -> list[list[str]]:
    """Return a row of each part.

    Args:
        parts: the parts, by name.
        rounds: how many times those in turns run.

    """
    return [
        [
            *(name, part.script, f"{part.minutes:g}", str(part.runs(rounds))),
            *(", ".join(part.wanted), part.topic or TOPIC),
        ]
        for name, part in parts.items()
    ]


def minutes(parts: Mapping[str, Part], rounds: int) -> float:
    """Return about how long all of them take, one after the other."""
    return sum(part.runs(rounds) * part.minutes for part in parts.values())
