"""What a method says of a specimen, and how it is counted and written in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What one method says of both forms of one specimen.

    Attributes:
        caught: whether it tells of the buggy form.
        line: whether it names the line to change.
        alarm: whether it tells of the fixed form, too.
        why: the reason, where there is one to show.

    """

    caught: bool
    line: bool
    alarm: bool
    why: str = ""

    @property
    def word(self) -> str:
        """Return the cell of a table."""
        said = "line" if self.line else "caught" if self.caught else "missed"
        return f"{said}, ALARM" if self.alarm else said


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Return how many there are, and how many of each kind."""
    all_of_them = list(verdicts)
    return {
        "specimens": len(all_of_them),
        "caught": sum(each.caught for each in all_of_them),
        "right_line": sum(each.line for each in all_of_them),
        "false_alarms": sum(each.alarm for each in all_of_them),
    }


def rows(
    found: Mapping[str, Mapping[str, Verdict]], methods: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return a row for each specimen: its name, and a word for each method."""
    return [
        (name, *(said[method].word if method in said else "-" for method in methods))
        for name, said in found.items()
    ]
