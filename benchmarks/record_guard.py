"""Compares the ratios of ``bench_all.py`` with those of the last record that was kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results_file import RESULTS, table

ALLOWED = 0.15
"""How much above the last one a median may be: of other machines ratios, too, differ a little."""

HEADER = ("figure", "last", "now", "now to last", "")


def last(device: str, folder: Path = RESULTS) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the newest record and its figures; "" and nothing if there is none."""
    for file in sorted(folder.glob(f"record_{device}_*.md"), reverse=True):
        return file.name, document(file)["figures"]
    return "", {}


def document(file: Path) -> Mapping[str, Any]:
    """Return the line of JSON of a record.

    Raises:
        ValueError: it has none.

    """
    for line in reversed(file.read_text(encoding="utf-8").splitlines()):
        if line.startswith("{"):
            found: Mapping[str, Any] = json.loads(line)
            return found
    raise ValueError(f"{file.name}: no line of JSON")


def compare(
    device: str, now: Mapping[str, Any], allowed: float, parts: Sequence[str]
) -> tuple[str, list[str]]:
    """Return a table of the figures now and then, and what is wrong.

    Args:
        device: ``cpu`` or ``gpu``.
        now: the figures.
        allowed: how much above the last median one may be.
        parts: those that were to be measured; figures of others are not missed.

    """
    name, before = last(device)
    if not name:
        words = f"There is no record of a {device} to compare with."
        return words, [words]
    return judge(name, before, now, allowed, parts)


def judge(
    name: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    allowed: float,
    parts: Sequence[str],
) -> tuple[str, list[str]]:
    """Return the same for the figures of a record of this name."""
    rows, wrong = [], []
    for figure, then in before.items():
        if then["part"] not in parts:
            continue
        if figure not in now:
            rows.append([figure, f"{then['median']:.3f}", "-", "-", "not measured"])
            wrong.append(f"{figure}: not measured")
            continue
        today = now[figure]
        ratio = today["median"] / then["median"]
        worse = ratio > 1 + allowed and today["least"] > then["most"]
        numbers = (then["median"], today["median"], ratio)
        rows.append([figure, *(f"{one:.3f}" for one in numbers), "worse" if worse else ""])
        if worse:
            wrong.append(f"{figure}: {then['median']:.3f} before, {today['median']:.3f} now")
    new = [figure for figure in now if figure not in before]
    rows += [[figure, "-", f"{now[figure]['median']:.3f}", "-", "new"] for figure in new]
    words = f"Against {name}: {len(wrong)} of {len(rows) - len(new)} figures are worse or missing."
    return f"{words}\n\n{table(HEADER, rows)}", wrong
