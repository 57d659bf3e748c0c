"""Every specimen: the buggy form is caught with its line, the fixed form passes in silence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.specimens import table
from tests.specimens.catalog import CATALOG
from tests.specimens.corpus import FORK_BUGS, MECHANISMS
from tests.specimens.run import assert_caught, assert_silent, run_form, skip_where_impossible
from tests.specimens.specimen import HOME, MARKER, Form, Specimen

LEAST_MECHANISMS = 28

each_specimen = pytest.mark.parametrize("specimen", CATALOG, ids=lambda specimen: specimen.name)


@each_specimen
def test_the_buggy_form_is_caught_with_its_line(specimen: Specimen, tmp_path: Path) -> None:
    skip_where_impossible(specimen)
    assert_caught(specimen, run_form(specimen, "buggy", tmp_path))


@each_specimen
def test_the_fixed_form_passes_in_silence(specimen: Specimen, tmp_path: Path) -> None:
    skip_where_impossible(specimen)
    assert_silent(specimen, run_form(specimen, "fixed", tmp_path))


@each_specimen
def test_exactly_the_culprit_line_is_marked(specimen: Specimen) -> None:
    assert specimen.marked_lines("buggy") == [specimen.culprit_line]
    assert specimen.marked_lines("fixed") == []


@each_specimen
def test_the_forms_differ_by_a_repair(specimen: Specimen) -> None:
    buggy, fixed = (
        {path: re.sub(rf" *{MARKER}", "", text) for path, text in specimen.sources(form).items()}
        for form in ("buggy", "fixed")
    )
    changed = {path for path in buggy.keys() | fixed.keys() if buggy.get(path) != fixed.get(path)}
    assert changed, "the forms differ by the marker at most"
    assert len(changed) <= 3, f"more than a repair: {sorted(changed)}"


@each_specimen
def test_the_folder_fixed_holds_only_what_the_repair_changes(specimen: Specimen) -> None:
    buggy, fixed = specimen.form("fixed").layers
    copies = [
        path.relative_to(fixed).as_posix()
        for path in fixed.rglob("*.py")
        if (twin := buggy / path.relative_to(fixed)).exists()
        and twin.read_bytes() == path.read_bytes()
    ]
    assert not copies, f"already in {buggy}, so they can go: {copies}"


def test_the_fixed_form_is_the_buggy_one_with_files_replaced_added_and_removed(
    tmp_path: Path,
) -> None:
    buggy, fixed = tmp_path / "buggy", tmp_path / "fixed"
    for name, text in {
        "buggy/pkg/kept.py": "kept",
        "buggy/pkg/repaired.py": "buggy",
        "buggy/pkg/dropped.py": "dropped",
        "buggy/pkg/__pycache__/kept.pyc": "",
        "fixed/pkg/repaired.py": "fixed",
        "fixed/pkg/inner/added.py": "added",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    Form((buggy, fixed), removed=("pkg/dropped.py",)).copy_to(tmp_path / "copy")

    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert {
        path.relative_to(tmp_path / "copy").as_posix(): path.read_text() for path in copied
    } == {
        "pkg/kept.py": "kept",
        "pkg/repaired.py": "fixed",
        "pkg/inner/added.py": "added",
    }


def test_a_file_that_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    (tmp_path / "kept.py").touch()
    with pytest.raises(LookupError, match=r"'dropped\.py' is to be removed"):
        Form((tmp_path,), removed=("dropped.py",)).files()


@each_specimen
def test_a_module_says_which_bug_it_stands_for(specimen: Specimen) -> None:
    for form in ("buggy", "fixed"):
        words = " ".join("\n".join(specimen.sources(form).values()).split())
        numbers = [bug for bug in specimen.corpus if "#" in bug]
        assert re.search(r"Stands for|A variation on", words)
        assert not numbers or any(bug in words for bug in numbers), f"none of {numbers} in {form}"


@each_specimen
def test_its_bugs_are_known_and_show_its_mechanism(specimen: Specimen) -> None:
    assert specimen.mechanism in MECHANISMS
    assert set(specimen.corpus) <= FORK_BUGS.keys()
    if "variation" not in specimen.note:
        assert all(FORK_BUGS[bug] == specimen.mechanism for bug in specimen.corpus)


def test_every_mechanism_of_the_corpus_has_a_specimen() -> None:
    assert {specimen.mechanism for specimen in CATALOG} == MECHANISMS
    assert len(CATALOG) >= LEAST_MECHANISMS


def test_the_catalog_lists_every_directory_once_in_order() -> None:
    names = [specimen.name for specimen in CATALOG]
    folders = [
        path.name
        for path in HOME.iterdir()
        if (path / "buggy").is_dir() and not (path / "catalog.py").is_file()  # one of its own
    ]
    assert names == sorted(folders)


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.render(), (
        "docs/reference/specimens.md is old: run `python -m tests.specimens.table`"
    )
