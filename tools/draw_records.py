"""Draws what committed records say: pictures and the tables of docs/explanation/measured.md.

The newest record of each kind in ``benchmarks/results/`` counts, of ratios the newest one that has
the part. A test compares pictures and page
with the records (``tests/repo/test_draw_records.py``); after a new record, run this again.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import part_table
from long_parts import LONG_CPU, LONG_GPU
from record_guard import last
from record_parts import CPU, GPU, ROUNDS
from results_file import PROJECT, RESULTS, document, kept

PAGE = PROJECT / "docs" / "explanation" / "measured.md"
IMAGES = PROJECT / "docs" / "images"
BEGIN, END = "<!-- written by tools/draw_records.py: {what} -->", "<!-- end -->"
IN_TURNS = {"cpu": CPU, "gpu": GPU}
"""The parts whose figures are ratios, for each kind of machine."""

# What the methods of benchmarks/catch_rate.py are called in a picture.
METHODS = {
    "torch": "torch's flag, before each fork",
    "driver": "the driver, asked before each fork",
    "vllm": "what vLLM's guard asks",
    "absent": "this plugin, no GPU simulated",
    "present": "this plugin, a GPU simulated",
}
ASK_TORCH = ("torch", "vllm")
"""The methods of these that ask torch, and can see nothing where it is not imported."""
# What benchmarks/catch_rate.py writes of the specimens that import torch.
_WITH_TORCH = re.compile(r"torch's flag can see nothing\. Of the other (\d+) it sees \d+\.")
WORDS = {
    "work of a kind, under `run`, to alone": (
        "program of JSON, regexes and threads, CPU, under `run`, to alone"
    ),
    "1 GPUs packed, to the best packing found": (
        "time of tests packed on 1 GPU, to the best packing found"
    ),
    "2 GPUs packed, to the best packing found": (
        "time of tests packed on 2 GPUs, to the best packing found"
    ),
}
"""What a reader is told of figures whose names in records say too little.

The names stay as they are: by them a figure is compared with that of the last record.
"""
_PLACES = 4  # of a figure in a record
_WIDTH, _ROW, _LABEL, _TOP = 900, 26, 440, 54
_SOAK_ROWS = 8
_INK, _FAINT, _FULL, _HALF = "#24292f", "#d0d7de", "#1a7f37", "#9bd3ae"


class Record(NamedTuple):
    """A record, what its line of JSON says, and all of its text."""

    name: str
    data: Mapping[str, Any]
    text: str = ""


def newest(topic: str, device: str, folder: Path = RESULTS) -> Record | None:
    """Return the newest record of a topic that has a line of JSON; None if there is none."""
    for file in kept(topic, device, folder):
        with suppress(ValueError):  # one that was written by hand
            return Record(file.name, document(file), file.read_text(encoding="utf-8"))
    return None


def of_costs(record: Record) -> str:
    """Return the picture of ratios: a bar from least to most and a mark at the median."""
    figures = record.data["figures"]
    values = [each[key] for each in figures.values() for key in ("least", "most")]
    low, high = math.log2(min(1.0, *values)), math.log2(max(1.0, *values))

    def at(value: float) -> float:
        return _LABEL + (math.log2(value) - low) / (high - low or 1.0) * (_WIDTH - _LABEL - 60)

    one = at(1.0)
    parts = [_line(one, _TOP - 8, one, _TOP + _ROW * len(figures), _FAINT)]
    parts.append(_text(one, _TOP - 14, "1", "middle"))
    for number, (name, each) in enumerate(figures.items()):
        top = _TOP + _ROW * number
        left, right, middle = at(each["least"]), at(each["most"]), at(each["median"])
        parts.append(_text(_LABEL - 10, top + 15, WORDS.get(name, name), "end"))
        parts.append(_bar(left, top + 6, max(right - left, 1.5), _HALF))
        parts.append(_bar(middle - 1.5, top + 3, 3, _FULL, height=18))
        parts.append(_text(right + 8, top + 15, numbers(each)[0], "start"))
    title = "Ratios, less is better, on a logarithmic scale: median, and least to most"
    return _picture(title, record.name, parts, len(figures))


def numbers(figure: Mapping[str, Any]) -> list[str]:
    """Return median, least and most of a figure, with as many places each.

    The smallest has three significant digits, or more until least and most differ.
    """
    median, least, most = (figure[key] for key in ("median", "least", "most"))
    places = min(_PLACES, max(0, 2 - math.floor(math.log10(least)))) if least else _PLACES
    while places < _PLACES and least != most and f"{least:.{places}f}" == f"{most:.{places}f}":
        places += 1
    return [f"{one:.{places}f}" for one in (median, least, most)]


def of_catches(record: Record) -> str:
    """Return the picture of specimens: how many each method tells, and with the right line.

    Raises:
        ValueError: the record does not say how many of them import torch.

    """
    totals = record.data["forks"]["totals"]
    if (found := _WITH_TORCH.search(record.text)) is None:
        raise ValueError(f"{record.name} does not say how many specimens import torch")
    parts, with_torch = [], int(found[1])
    for number, (name, words) in enumerate(METHODS.items()):
        each, top = totals[name], _TOP + _ROW * number
        whole = (_WIDTH - _LABEL - 220) / each["specimens"]
        parts.append(_text(_LABEL - 10, top + 15, words, "end"))
        parts.append(_bar(_LABEL, top + 6, whole * each["caught"], _HALF))
        parts.append(_bar(_LABEL, top + 6, whole * each["right_line"], _FULL))
        asked = f"the {with_torch} that import torch" if name in ASK_TORCH else each["specimens"]
        told = f"{each['caught']} of {asked}, line {each['right_line']}, "
        told += f"false {each['false_alarms']}"
        parts.append(_text(_LABEL + whole * each["caught"] + 8, top + 15, told, "start"))
    every = totals["torch"]["specimens"]
    without = (
        f"{every - with_torch} of the {every} run without torch: there its flag can see nothing, "
    )
    without += "nor can vLLM's guard, which asks it."
    parts.append(_text(12, _TOP + _ROW * len(METHODS) + 15, without, "start"))
    title = "Fork specimens told (light), and told with the line to change (dark)"
    return _picture(title, record.name, parts, len(METHODS) + 1)


def of_soak(record: Record) -> str:
    """Return the picture of loops: a line each of the memory it has, from its begin to its end."""
    loops = {name: each["samples"] for name, each in record.data["loops"].items()}
    most = max(memory for samples in loops.values() for _, memory, *_ in samples)
    left, right, bottom = 70, _WIDTH - 270, _TOP + _ROW * _SOAK_ROWS
    parts = [_line(left, bottom, right, bottom, _FAINT)]
    parts += [_text(left - 8, bottom + 4, "0", "end"), _text(left - 8, _TOP + 4, "MiB", "end")]
    for name, samples in loops.items():
        turns = samples[-1][0]
        points = [
            (left + (right - left) * turn / turns, bottom - (bottom - _TOP) * memory / most)
            for turn, memory, *_ in samples
        ]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" stroke="{_FULL}" fill="none"/>')
        told = f"{name}: {turns:,} turns, {samples[-1][1] / 2**20:.0f} MiB"
        parts.append(_text(right + 8, points[-1][1] + 4, told, "start"))
    title = "Memory of a loop and of the processes that it keeps, from its begin to its end"
    return _picture(title, record.name, parts, _SOAK_ROWS)


def _picture(title: str, source: str, parts: Sequence[str], rows: int) -> str:
    height = _TOP + _ROW * rows + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(12, 22, title, "start"),
            *parts,
            _text(12, height - 10, f"benchmarks/results/{source}", "start"),
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}"'
    return f"<text {place}>{escape(words)}</text>"


def _bar(x: float, y: float, width: float, color: str, height: int = 12) -> str:
    size = f'width="{width:.1f}" height="{height}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{color}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{color}"/>'


def pictures() -> dict[Path, str]:
    """Return every picture that the records allow, by its file."""
    drawn = {}
    for device, parts in IN_TURNS.items():
        names, figures = last(device, parts)
        if figures:
            name = ", ".join(names)
            drawn[IMAGES / f"costs_{device}.svg"] = of_costs(Record(name, {"figures": figures}))
    if record := newest("catch_rate", "cpu"):
        drawn[IMAGES / "catch_rate.svg"] = of_catches(record)
    if record := newest("soak", "cpu"):
        drawn[IMAGES / "soak.svg"] = of_soak(record)
    return drawn


def costs(device: str) -> str:
    """Return the table of ratios, each of the newest record that has its part."""
    names, figures = last(device, IN_TURNS[device])
    if not names:
        return "No record is there yet."
    lines = ["| ratio, less is better | median | least | most | runs |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, each in figures.items():
        cells = (WORDS.get(name, name), *numbers(each), str(each["runs"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(source(name) for name in names)])


def source(name: str) -> str:
    """Return where a record was made, with a link to it."""
    data = document(RESULTS / name)
    machine, numbers = data["machine"], data["versions"]
    told = ", ".join(f"{package} {number}" for package, number in numbers.items())
    where = ", ".join([machine["processor"], f"{machine['cores']} cores", *machine.get("gpus", ())])
    load = f"load {machine['load'][0]} at the end"
    of = f", revision {machine['revision']}" if "revision" in machine else ""
    return f"[{name}](../../benchmarks/results/{name}): {where}, {load}; {told}{of}."


def parts() -> str:
    """Return the table of what `make bench` and `make bench-gpu` run."""
    lines = [f"| {' | '.join(part_table.HEADER)} |", "| --- | --- | ---: | ---: | --- | --- |"]
    for listed in (CPU, LONG_CPU, GPU, LONG_GPU):
        for name, script, minutes, runs, needs, topic in part_table.rows(listed, ROUNDS):
            cells = (name, f"`{script}`", minutes, runs, needs, f"`{topic}`")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the tables in their places.

    Raises:
        ValueError: the page has no place for one.

    """
    for what, written in (("cpu", costs("cpu")), ("gpu", costs("gpu")), ("parts", parts())):
        begin = BEGIN.format(what=what)
        before, found, rest = text.partition(begin)
        _, end, after = rest.partition(END)
        if not (found and end):
            raise ValueError(f"{PAGE.name}: no {begin} ... {END}")
        text = f"{before}{begin}\n\n{written}\n\n{END}{after}"
    return text


def main() -> None:
    """Write the pictures and the page."""
    for file, drawn in pictures().items():
        file.write_text(drawn, encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
