"""Judges what the check said of a release: whether it is told, and by which line."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from release_rows import Pair

_WORDS = 90
REFUSED = "guarded"
"""The check's word for a fork that it refused."""


@dataclass(frozen=True)
class Side:
    """What came of one release.

    Attributes:
        why_not: why nothing can be said of it; "" where the check has looked at it.
        told: whether the check refused the fork after the statements.
        lines: the lines that it blames, ``file:line``, each with its statement.
        flag: whether torch said before the fork that it has initialized CUDA.
        raised: what the statements raised; "" if nothing.

    """

    why_not: str = ""
    told: bool = False
    lines: tuple[tuple[str, str], ...] = ()
    flag: bool = False
    raised: str = ""

    def names(self, culprit: tuple[str, str]) -> bool:
        """Whether it blames the statement in the file, or in a file of the folder."""
        file, statement = culprit
        return any(f"/{file}" in place and statement in code for place, code in self.lines)


def side(report: Mapping[str, Any] | None, outcome: Mapping[str, Any] | None, end: str) -> Side:
    """Return what came of a release.

    Args:
        report: the check's document; None if there is none.
        outcome: what the program wrote right before its fork; None if it did not come so far.
        end: the last line that the program wrote.

    """
    if report is None:
        return Side(why_not=f"the check wrote no report: {end}")
    if outcome is None:
        return Side(why_not=f"the program did not reach its fork: {end}")
    told = any(fork["verdict"] == REFUSED for fork in report["forks"])
    raised = str(outcome["raised"])
    if not told and report["not_observable"]:
        return Side(why_not=f"not observable: {report['not_observable'][0]}")
    if raised and not told:  # what would have come after that line is not known
        return Side(why_not=f"the statements raised {raised}", raised=raised)
    culprits = dict.fromkeys(finding["culprit"] for finding in report["findings"])
    lines = tuple((place, statement(place)) for place in culprits)
    return Side("", told, lines, bool(outcome["flag"]), raised)


def statement(place: str) -> str:
    """Return the source at ``file:line``; "" where it cannot be read."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


@dataclass(frozen=True)
class Judged:
    """A pair and what came of its two releases."""

    pair: Pair
    before: Side
    after: Side

    @property
    def ran(self) -> bool:
        """Whether something can be said of both."""
        return not (self.before.why_not or self.after.why_not)

    @property
    def line(self) -> bool:
        """Whether the line that was written down is named before."""
        return self.before.told and self.before.names(self.pair.culprit)

    @property
    def gone(self) -> bool:
        """Whether that line is not named after."""
        return not self.after.names(self.pair.culprit)

    @property
    def name(self) -> str:
        """Return the pair in words."""
        return f"{self.pair.package} {self.pair.before}, {self.pair.after}"


def counts(judged: Sequence[Judged]) -> dict[str, int]:
    """Return how many pairs there are, and how many of each kind."""
    ran = [each for each in judged if each.ran]
    return {
        "pairs": len(judged),
        "ran": len(ran),
        "told_before": sum(each.before.told for each in ran),
        "right_line": sum(each.line for each in ran),
        "silent_after": sum(not each.after.told for each in ran),
        "line_gone_after": sum(each.gone for each in ran),
        "flag_before": sum(each.before.flag for each in ran),
    }


def row(each: Judged) -> tuple[str, ...]:
    """Return the cells of a table: the pair, its bug, and yes or no for each question."""
    if not each.ran:
        return (each.name, each.pair.bug, *["not run"] * 5)
    answers = (
        each.before.flag,
        each.before.told,
        each.line,
        not each.after.told,
        each.gone,
    )
    return (each.name, each.pair.bug, *("yes" if answer else "no" for answer in answers))


def notes(each: Judged) -> list[str]:
    """Return what a table cannot say: why a pair did not run, and the lines that were named."""
    pair, said = each.pair, []
    for release, one in ((pair.before, each.before), (pair.after, each.after)):
        name = f"- {pair.package} {release}"
        if one.why_not:
            said.append(f"{name}: not run: {one.why_not}")
            continue
        if one.raised:
            said.append(f"{name}: the statements raised {one.raised[:_WORDS]}")
        said += [f"{name}: named `{shortened(place)}`: `{code}`" for place, code in one.lines]
    return said


def shortened(place: str) -> str:
    """Return a place without the folders above what was installed, or above the program."""
    _, installed, within = place.rpartition("site-packages/")
    return within if installed else place.rpartition("/")[2]
