"""What the pages promise is on one page with the run that shows it."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.repo.sources import PROJECT
from tests.repo.test_figures import pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = PROJECT / "docs" / "explanation" / "promises.md"
NO_PROMISES = Path(__file__).with_name("no_promises.toml")
LEAST = 30
_ROW = re.compile(r"^\| (?!promise|---)(.*) \| \[[^\]]*\]\(([^)]*)\) \| (.*) \|$", re.MULTILINE)
_RUN = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`|`(benchmarks/results/[\w.-]+\.md)`")
_WORDS = re.compile(
    r"\b(?:never|no process|nothing is (?:left|lost)|none runs|no test runs|no other test|keeps no"
    r"|(?:is|are) ended with|with and without sharing|guarantee\w*)\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.M | re.S)
_PARTS = re.compile(r"\n\s*\n|\n(?=\s*(?:[*-]|\d\.) )|\||(?<=[.;:])\s")
_GOES_ON = re.compile(r"\s*\w")  # a promise ends where its sentence or a part of it does
_GENERATED = ("corpus.md", "specimens.md", "graph-specimens.md")
_ELSEWHERE = ("threat-model.md", "promises.md")  # names its own tests; is what is compared with

ROWS = _ROW.findall(PAGE.read_text(encoding="utf-8"))


def plain(text: str) -> str:
    """Return text in one line, without what marks code and emphasis."""
    return " ".join(re.sub(r"[`*]", "", text).split())


def sentences(text: str) -> list[str]:
    """Return the parts of a page, outside blocks of code, that sound like a promise."""
    parts = (plain(each) for each in _PARTS.split(_FENCE.sub("", text)))
    return [each for each in parts if _WORDS.search(each)]


@cache
def functions(file: str) -> set[str]:
    """Return the names of the functions of a file."""
    tree = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def no_promises() -> dict[str, str]:
    """Return words of sentences that promise nothing, with the reason."""
    found: dict[str, str] = tomllib.loads(NO_PROMISES.read_text(encoding="utf-8"))["words"]
    return found


@pytest.mark.parametrize(("promise", "link", "runs"), ROWS)
def test_a_promise_is_on_its_page_and_a_run_shows_it(promise: str, link: str, runs: str) -> None:
    page = (PAGE.parent / link).resolve()
    _, *after = plain(page.read_text(encoding="utf-8")).split(plain(promise))
    assert after, "it is not there"
    assert not all(_GOES_ON.match(each) for each in after), f"it goes on: {after[0]:.40}"
    shown = _RUN.findall(runs)
    assert shown
    for file, function, record in shown:
        assert (PROJECT / (file or record)).is_file()
        assert not function or function in functions(file)


def test_what_sounds_like_a_promise_is_one_of_them_or_listed_with_a_reason() -> None:
    known = [plain(promise) for promise, _, _ in ROWS] + list(no_promises())
    whole: dict[Path, list[str]] = defaultdict(list)  # a promise may have several parts of its page
    for promise, link, _ in ROWS:
        whole[(PAGE.parent / link).resolve()].append(plain(promise))
    found = [
        f"{page.relative_to(PROJECT)}: {each}"
        for page in pages()
        if page.name not in (*_GENERATED, *_ELSEWHERE)
        for each in sentences(page.read_text(encoding="utf-8"))
        if not any(words in each for words in known)
        if not any(each in promise for promise in whole[page.resolve()])
    ]
    assert not found, "\n".join(found)


def test_what_is_listed_as_no_promise_is_on_a_page() -> None:
    every = [each for page in pages() for each in sentences(page.read_text(encoding="utf-8"))]
    gone = [words for words in no_promises() if not any(words in each for each in every)]
    assert not gone
    assert all(no_promises().values())


def test_there_are_as_many_promises_as_there_were() -> None:
    assert len(ROWS) >= LEAST


def test_a_promise_within_code_or_over_two_lines_is_read_as_it_is_meant() -> None:
    text = (
        "It does.\nIt *never*\nfails: `x` is never `y`.\n\n```\nnever\n```\n| a | no process: b |"
    )
    assert sentences(text) == ["It never fails:", "x is never y.", "no process:"]
