"""The documentation agrees with the code: names, links, examples."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import get_args

import pytest

import pytest_cudafork.plugin
from pytest_cudafork.__main__ import main as commands
from pytest_cudafork.capture.interface.check_names import CheckName
from pytest_cudafork.explain.kinds import KINDS
from pytest_cudafork.settings import Level, import_options
from pytest_cudafork.settings.devices import DeviceKind
from pytest_cudafork.settings.markers import MARKERS
from pytest_cudafork.settings.options import OPTIONS, PARSERS
from tests.repo.doc_shell import PAGES
from tests.repo.sources import DOCS, PROJECT

REFERENCE = DOCS / "reference"
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


def test_the_table_of_options_has_the_names_that_the_table_in_the_code_has() -> None:
    text = (REFERENCE / "options.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| `(--[^`]+)` \| `(\w+)` \| `(\w+)` \|", text, re.M)
    spelled = {(flag.replace("[", "").replace("]", ""), env, ini) for flag, env, ini in rows}
    expected = set()
    for option in OPTIONS:
        values = {"", f"={option.metavar}", f"={option.metavar},..."}
        known = [row for row in spelled if row[0] in {option.flag + value for value in values}]
        row = f"{option.flag}={option.metavar}, {option.env}, {option.name}"
        assert len(known) == 1, f"options.md, the table at its top: one row with {row}"
        expected.add((known[0][0], option.env, option.name))
    assert spelled == expected
    optional = {row[0].partition("[")[0] for row in rows if "[" in row[0]}
    bare = {option.flag for option in OPTIONS if option.flag_value is not None}
    assert optional <= bare, "a bare flag that the code does not take"


def test_the_readme_is_short_and_leads_to_the_rest() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert len(re.findall(r"!\[", text)) == 1
    for page in ("options", "markers", "fixtures", "compatibility", "releases"):
        assert f"docs/reference/{page}.md" in text
    for page in ("ci-recipes", "troubleshooting", "from-pytest-forked", "graph-capture"):
        assert f"docs/how-to/{page}.md" in text


def test_the_reference_has_each_file_that_an_option_names() -> None:
    named = {f"`{option.flag}`" for option in OPTIONS if option.metavar == "FILE"}
    table = (REFERENCE / "files.md").read_text(encoding="utf-8").partition("\n| command |")[0]
    told = {f"`{cell}`" for cell in re.findall(r"^\| `(--cuda-fork[\w-]+)`", table, re.M)}
    assert told == named, "files.md, its first table"


def test_the_reference_has_each_file_that_a_command_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, _, table = (REFERENCE / "files.md").read_text(encoding="utf-8").partition("\n| command |")
    told = set(re.findall(r"`(\w+) --(report|ledger|output|json)`", table))
    known = set()
    for command in ("run", "merge", "imports", "explain", "doctor", "attach"):
        with contextlib.suppress(SystemExit):
            commands([command, "--help"])
        help_text = capsys.readouterr().out
        for name in ("report", "ledger", "output", "json"):
            if re.search(rf"--{name}\b", help_text):
                known.add((command, name))
    assert ("run", "json") in known
    assert told == known - {("run", "json")}, "`run --json` is the form of `run --report`"


def test_the_reference_has_each_record_that_a_session_writes() -> None:
    observer = (PROJECT / "pytest_cudafork" / "observe" / "observer.py").read_text(encoding="utf-8")
    written = set(re.findall(r'_append\(\s*"(\w+)"', observer))
    assert {"captures", "end", "watch"} <= written
    headings = re.findall(r"^## (.+)$", (REFERENCE / "ledger.md").read_text(encoding="utf-8"), re.M)
    told = {kind for line in headings for kind in re.findall(r'`"k": "(\w+)"`', line)}
    assert written <= told


def hooks_in_the_code() -> set[str]:
    """Return the hooks that the package offers to other plugins."""
    found = set()
    for path in (PROJECT / "pytest_cudafork").rglob("*.py"):
        if "hookspec" in (text := path.read_text(encoding="utf-8")):
            found |= set(re.findall(r"^def (pytest_cudafork_\w+)", text, re.M))
    return found


def test_the_reference_has_each_hook_and_no_other() -> None:
    page = REFERENCE / "hooks.md"
    cells = {cell.partition("(")[0] for cell in first_cells(page)} if page.exists() else set()
    assert {cell for cell in cells if cell.startswith("pytest_cudafork_")} == hooks_in_the_code()


def test_the_reference_has_each_command_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands(["--help"]) == 0
    said = set(re.findall(r"^  (\w+)", capsys.readouterr().out, re.M))
    table = (REFERENCE / "command-line.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)", table, re.M)) == said


def test_the_reference_has_each_kind_that_a_log_is_explained_by() -> None:
    text = section(REFERENCE / "run.md", "`python -m pytest_cudafork explain`")
    assert re.findall(r"^\| `([\w-]+)`", text, re.M) == [kind.name for kind in KINDS]


def test_each_check_of_a_graph_has_a_class_that_links_to_nvidia() -> None:
    text = (REFERENCE / "graphs.md").read_text(encoding="utf-8")
    _, found, rest = text.partition("| class of finding | checks |")
    assert found
    rows = [line for line in rest.partition("\n\n")[0].splitlines() if line.startswith("| ")]
    linked = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(linked) == sorted(get_args(CheckName))
    assert all("https://docs.nvidia.com/dl-cuda-graph/" in row for row in rows)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=page_id)
def test_a_page_that_runs_the_engine_says_what_to_install(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if re.search(r"`demo/kv_sharing\.py`|^from sample_engine", text, re.M):
        assert 'pip install -e ".[engine]"' in text


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


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(
        r"([\w/-]+\.md)$", (PROJECT / "mkdocs.yml").read_text(encoding="utf-8"), re.M
    )
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


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
