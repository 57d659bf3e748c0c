"""Compares the figures of ``bench_all.py`` with the last ones that were kept.

Of each part the newest record counts that has it: a record need not have all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from record_parts import Part
from results_file import RESULTS, document, kept, table

TOPIC = "record"
"""What the names of records of ``bench_all.py`` begin with."""
ALLOWED = 0.15
"""How much above the last one a median may be: of other machines ratios, too, differ a little."""

HEADER = ("figure", "last", "now", "now to last", "")


def last(
    device: str, parts: Mapping[str, Part], folder: Path = RESULTS
) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the records with the newest figures of these parts, and the figures."""
    files: list[str] = []
    found: dict[str, Any] = {}
    for name, part in parts.items():
        for file in kept(part.topic or TOPIC, device, folder):
            told = _told(name, part, file)
            if told:
                files += [file.name] if file.name not in files else []
                found |= told
                break
    return files, found


def _told(name: str, part: Part, file: Path) -> dict[str, Any]:
    """Return the figures of a part that are in a record."""
    try:
        data = document(file)
    except ValueError:
        return {}  # one that was written by hand
    if part.topic:
        return {
            figure: {"part": name, "median": one, "least": one, "most": one, "runs": 1}
            for figure, one in part.figures(data).items()
        }
    return {figure: each for figure, each in data["figures"].items() if each["part"] == name}


def of_other_processors(names: Sequence[str], here: str, folder: Path = RESULTS) -> list[str]:
    """Return a sentence for each record of these names that is of another processor, or of none."""
    found = []
    for name in names:
        there = document(folder / name).get("machine", {}).get("processor", "a processor not told")
        if there != here:
            found.append(f"{name} is of {there}, and this is {here}: ratios differ by that, too.")
    return found


def compare(
    earlier: tuple[Sequence[str], Mapping[str, Any]],
    now: Mapping[str, Any],
    allowed: float,
    parts: Mapping[str, Part],
) -> tuple[str, list[str]]:
    """Return a table of the figures now and then, and what is wrong.

    Args:
        earlier: what ``last`` said before these parts have run, and kept records of their own.
        now: the figures.
        allowed: how much above the last median one may be.
        parts: those that were to be measured; figures of others are not missed.

    """
    names, every = earlier
    if now and not names:
        words = "There is no record to compare with."
        return words, [words]
    before = {figure: each for figure, each in every.items() if each["part"] in parts}
    counts = {name for name, part in parts.items() if part.counts}
    return judge(", ".join(names), before, now, allowed, counts)


def doubtful(
    earlier: tuple[Sequence[str], Mapping[str, Any]],
    now: Mapping[str, Any],
    allowed: float,
    parts: Mapping[str, Part],
) -> list[str]:
    """Return the parts, not of counts, of which a figure looks worse than before."""
    found = [
        then["part"]
        for figure, then in earlier[1].items()
        if figure in now and then["part"] in parts and not parts[then["part"]].counts
        if _is_worse(then, now[figure], allowed)
    ]
    return list(dict.fromkeys(found))


def _is_worse(then: Mapping[str, Any], now: Mapping[str, Any], allowed: float) -> bool:
    above = now["median"] / then["median"] > 1 + allowed
    return bool(above and now["least"] > then["most"])


def judge(
    name: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    allowed: float,
    counts: set[str] | frozenset[str] = frozenset(),
) -> tuple[str, list[str]]:
    """Return the same for figures of records of this name, some of them of parts that count."""
    rows, wrong = [], []
    for figure, then in before.items():
        if figure not in now:
            rows.append([figure, f"{then['median']:.3f}", "-", "-", "not measured"])
            wrong.append(f"{figure}: not measured")
            continue
        today = now[figure]
        ratio = today["median"] / then["median"]
        worse = _is_worse(then, today, 0.0 if then["part"] in counts else allowed)
        numbers = (then["median"], today["median"], ratio)
        rows.append([figure, *(f"{one:.3f}" for one in numbers), "worse" if worse else ""])
        if worse:
            wrong.append(f"{figure}: {then['median']:.3f} before, {today['median']:.3f} now")
    new = [figure for figure in now if figure not in before]
    rows += [[figure, "-", f"{now[figure]['median']:.3f}", "-", "new"] for figure in new]
    if not rows:
        return "Nothing to compare: the exit status of these parts is their verdict.", []
    words = f"Against {name}: {len(wrong)} of {len(rows) - len(new)} figures are worse or missing."
    return f"{words}\n\n{table(HEADER, rows)}", wrong
