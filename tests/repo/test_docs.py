"""The documentation agrees with the code: names, links, examples."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

import pytest_cudafork.plugin
from pytest_cudafork.settings import Level, import_options
from pytest_cudafork.settings.devices import DeviceKind
from pytest_cudafork.settings.markers import MARKERS
from pytest_cudafork.settings.options import OPTIONS, PARSERS
from tests.repo.sources import DOCS, PROJECT

REFERENCE = DOCS / "reference"
PAGES = sorted([PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
FIXTURES = set(pytest_cudafork.plugin.__all__)


def page_id(path: Path) -> str:
    """A page's path below the project."""
    return str(path.relative_to(PROJECT))


def first_cells(page: Path) -> set[str]:
    """Return what is in backticks in the first cell of each table row of a page."""
    cells = set()
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells.update(re.findall(r"`([^`]+)`", line.split("|")[1]))
    return cells


def section(page: Path, title: str) -> str:
    """Return the text below a heading, up to the next one."""
    text = page.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"## {title}\n")
    assert found, f"{page} has no section {title!r}"
    return rest.partition("\n## ")[0]


def test_the_reference_has_each_option_and_no_other() -> None:
    flags = {cell.split("=")[0].rstrip("[") for cell in first_cells(REFERENCE / "options.md")}
    documented = {flag for flag in flags if flag.startswith("--")}
    assert documented == {option.flag for option in OPTIONS}


def test_the_reference_says_which_options_may_be_empty_on_the_command_line() -> None:
    text = (REFERENCE / "options.md").read_text(encoding="utf-8")
    _, found, rest = text.partition("an empty value takes back what the other places say")
    assert found
    documented = set(re.findall(r"`(--[\w-]+)`", rest.partition("For any other")[0]))
    may_be_empty = set()
    for option, parse in (*PARSERS.values(), *import_options.PARSERS.values()):
        with contextlib.suppress(ValueError):
            parse("")
            may_be_empty.add(option.flag)
    assert documented == may_be_empty


def test_the_reference_has_each_level_and_kind_of_device() -> None:
    levels = re.findall(
        r"^\| `(\w+)`", section(REFERENCE / "options.md", "`--cuda-fork-check`"), re.M
    )
    assert levels == [level.value for level in Level]
    devices = section(REFERENCE / "options.md", "`--cuda-fork-device`")
    kinds = {text.split(":")[0] for text in re.findall(r"^\| `([\w:]+)`", devices, re.M)}
    assert kinds == {kind.value for kind in DeviceKind}


def test_the_reference_has_each_marker_and_no_other() -> None:
    rows = first_cells(REFERENCE / "markers.md")
    assert {row for row in rows if "(" in row} == {marker.signature for marker in MARKERS}


def test_the_reference_has_each_keyword_of_each_marker() -> None:
    text = (REFERENCE / "markers.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, re.M))
    assert rows == {(marker.name, keyword) for marker in MARKERS for keyword in marker.keywords}


def test_the_reference_has_each_fixture_and_no_other() -> None:
    page = REFERENCE / "fixtures.md"
    documented = re.findall(
        r"^\| `(\w+)` \|", page.read_text(encoding="utf-8").split("\n## ")[0], re.M
    )
    assert set(documented) == FIXTURES


def test_the_reference_has_each_variable_to_set() -> None:
    text = section(REFERENCE / "environment.md", "To set")
    assert set(re.findall(r"^\| `(\w+)`", text, re.M)) == {option.env for option in OPTIONS}


def test_the_readme_has_each_option_marker_and_fixture() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    names = [option.flag for option in OPTIONS] + [marker.name for marker in MARKERS]
    missing = [name for name in [*names, *FIXTURES] if f"`{name}" not in text]
    assert not missing


def test_the_readme_begins_with_the_two_commands() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^make \w+", text, re.M)
    assert commands[:2] == ["make demo", "make test"]
    assert text.index("make demo") < 100


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                waiting.append((page.parent / target).resolve())
    assert {page for page in PAGES if page.is_relative_to(DOCS)} <= seen
