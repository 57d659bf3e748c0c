"""Every measured figure of the docs names its record, and the record has it.

A figure here is a number with a unit of time, memory or speed, or a ratio ("2.5 times", "15 %"),
outside blocks of code, also where the number is a word ("half a minute"); and how many of what is
tried there are ("nine bugs"), from five on. So is each other number of a paragraph that names a
record: how many of how many. One that was never measured (a limit, a
default, an example) stands in ``figures_not_measured.toml`` with what it is. Whether a sentence
says of a number what the record says of it is for a reader to judge; that the number is there is
judged here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.repo.sources import PROJECT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOT_MEASURED = Path(__file__).with_name("figures_not_measured.toml")
_TIME = r"ms|us|µs|s|seconds?|minutes?|hours?"
_UNIT = rf"(?:{_TIME}|[KMG]i?B|TB/s|TFLOP/s|tokens/s|times|tokens|x(?! \d)|%)(?![\w/])"
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_FIGURE = re.compile(rf"(?<![\w.,-])({_NUMBER})(?: (?:to|and|or) ({_NUMBER}))? ?({_UNIT})")
_RECORD = re.compile(r"benchmarks/results/([\w.-]+\.md)")
_WORDS = {
    "half": 0.5,
    "tenth": 0.1,
    **{
        word: 2 + at
        for at, word in enumerate(["two", "three", "four", "five", "six", "seven", "eight"])
    },
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "twenty": 20,
    "thirty": 30,
}
_IN_WORDS = re.compile(
    rf"\b({'|'.join(_WORDS)})(?: (?:to|and|or) ({'|'.join(_WORDS)}))?(?: of)?(?: an?)? "
    r"(?:(?:second|minute|hour)s?|times (?:as|more|less))\b"
)
_MANY = "|".join([word for word, number in _WORDS.items() if number >= 5] + [r"[5-9]|\d[\d,]*\d"])
_TRIED = "lines|tests|bugs|modules|specimens|releases|libraries|projects|suites|programs"
_HOW_MANY = re.compile(
    rf"(?<![\w.,-])({_MANY}) (?:{_TRIED}|faults|pairs|captures|replays|forks|engines)\b"
)
_COUNT = re.compile(rf"(?<![\w.,:/#-])({_NUMBER})(?![\w:/]|\.\d|-\w)")
_CODE_OR_TARGET = re.compile(r"\]\([^)]*\)|`[^`]*`")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.M | re.S)


class Figure(NamedTuple):
    """A figure of a block: its words, and its one or two numbers."""

    words: str
    numbers: tuple[str, ...]


def pages() -> list[Path]:
    """Return the pages that state figures: the README and the documentation."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[str]:
    """Return the paragraphs, lists and tables of a page, each with what leads to it by a colon."""
    held = ""
    for block in re.split(r"\n\s*\n", _FENCE.sub("", text)):
        held += f"\n{block}"
        if not block.rstrip().endswith(":"):
            yield held
            held = ""
    yield held


def figures(block: str) -> list[Figure]:
    """Return the figures of a block."""
    return [
        Figure(" ".join(found[0].split()), tuple(filter(None, found.groups()[:2])))
        for pattern in (_FIGURE, _IN_WORDS, _HOW_MANY)
        for found in pattern.finditer(block)
    ]


def counts(block: str) -> list[Figure]:
    """Return the other numbers of a block, but for those within code and targets of links."""
    for pattern in (_CODE_OR_TARGET, _FIGURE, _HOW_MANY):
        block = pattern.sub("`", block)
    return [Figure(found[0], (found[0],)) for found in _COUNT.finditer(block)]


def has(record: str, number: str) -> bool:
    """Whether a record has a number that is this one when it is rounded to as many places."""
    number = str(_WORDS.get(number, number))
    places = len(number.partition(".")[2])
    wanted = float(number.replace(",", ""))
    return any(
        round(float(found.replace(",", "")), places) == wanted
        for found in re.findall(_NUMBER, record)
    )


def complaints(page: str, text: str, known: set[str], results: Path) -> list[str]:
    """Return the figures of a page that no record has."""
    found = []
    for block in blocks(text):
        records = [results / name for name in _RECORD.findall(block)]
        absent = [record.name for record in records if not record.is_file()]
        found += [f"{page}: there is no record {name}" for name in absent]
        said = "\n".join(file.read_text(encoding="utf-8") for file in records if file.is_file())
        for figure in figures(block) + (counts(block) if records else []):
            if figure.words in known:
                continue
            if not records:
                found.append(f"{page}: {figure.words!r} names no record, and is not listed")
            elif not all(has(said, number) for number in figure.numbers):
                names = ", ".join(record.name for record in records)
                found.append(f"{page}: {figure.words!r} is not in {names}")
    return found


def listed() -> dict[str, dict[str, str]]:
    """Return page to words of figures that were not measured to what they are."""
    found: dict[str, dict[str, str]] = tomllib.loads(NOT_MEASURED.read_text(encoding="utf-8"))
    return found


def test_every_figure_of_the_docs_is_in_the_record_that_it_names() -> None:
    known, found = listed(), []
    for path in pages():
        page = path.relative_to(PROJECT).as_posix()
        text = path.read_text(encoding="utf-8")
        results = PROJECT / "benchmarks" / "results"
        found += complaints(page, text, set(known.get(page, {})), results)
    assert not found, "\n".join(found)


def test_what_is_listed_as_not_measured_is_on_its_page() -> None:
    for page, words in listed().items():
        text = (PROJECT / page).read_text(encoding="utf-8")
        there = {each.words for block in blocks(text) for each in figures(block) + counts(block)}
        assert set(words) <= there, f"{page}: {set(words) - there}"
        assert all(words.values()), f"{page}: a figure without what it is"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It took 1.5 s ([record](../benchmarks/results/one.md)).", []),
        ("It took 1.5 to 2 s (`benchmarks/results/one.md`).", []),
        ("It took 1.6 s (`benchmarks/results/one.md`).", ["'1.6 s' is not in one.md"]),
        ("It took 1.5 s.", ["'1.5 s' names no record, and is not listed"]),
        ("It waits 7 s.", []),
        ("```\nexited after 9 s\n```\n", []),
        ("As `benchmarks/results/one.md` has it:\n\n| a | 1.47 ms |\n", []),
        ("See `benchmarks/results/two.md`.", ["there is no record two.md"]),
        (
            "Of 1,234 tests it took 12 %.\n`benchmarks/results/one.md`",
            ["'12 %' is not in one.md", "'1,234 tests' is not in one.md"],
        ),
        ("Of 2 tests, [two](4.md) and `5.6` (`benchmarks/results/one.md`).", []),
        ("It took two seconds (`benchmarks/results/one.md`).", []),
        ("It took half a minute.", ["'half a minute' names no record, and is not listed"]),
        ("Of 330 lines that is two.", ["'330 lines' names no record, and is not listed"]),
        ("Nine bugs, or nine bugs.", ["'nine bugs' names no record, and is not listed"]),
    ],
)
def test_a_figure_without_a_record_is_told(text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text('{"a": 1.4712, "b": 1.52, "c": 2}', encoding="utf-8")
    assert complaints("page", text, {"7 s"}, tmp_path) == [f"page: {each}" for each in words]
