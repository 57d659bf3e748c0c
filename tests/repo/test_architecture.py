"""The pages that lead through the code agree with it: picture of folders, names of files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repo.sources import DOCS, PACKAGE, PROJECT
from tools import draw_folders

ARCHITECTURE = DOCS / "explanation" / "architecture.md"
PAGES = (ARCHITECTURE, PROJECT / "CONTRIBUTING.md")

# What the pages say of any such file or folder; names in capitals are the reader's to choose.
EXAMPLES = ("a/b.py", "tests/unit/a/test_b.py", "child/", "worker/", "buggy/", "fixed/")


def test_the_picture_of_folders_is_current() -> None:
    assert draw_folders.on_page(ARCHITECTURE.read_text(encoding="utf-8")) == draw_folders.drawn(), (
        "docs/explanation/architecture.md is old: run `python tools/draw_folders.py`"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_folders_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|\.toml|/))`", text)
    assert len(named) > 20
    missing = [
        name
        for name in named
        if name not in EXAMPLES
        and not re.search("[A-Z]{4}", name.removesuffix("CONTRIBUTING.md"))
        and not any((root / name).exists() for root in (PROJECT, PROJECT / PACKAGE, DOCS))
    ]
    assert not missing, f"{page.name} names what is not there: {', '.join(missing)}"


def test_an_arrow_that_others_imply_is_left_out() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert draw_folders.without_shortcuts(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_subfolders_count_as_their_folder_at_the_top() -> None:
    graph = {"": {"a/x"}, "a/x": {"a", "b"}, "a": {"b"}, "b": set()}
    assert draw_folders.top_level(graph) == {"plugin": {"a"}, "a": {"b"}, "b": set()}
