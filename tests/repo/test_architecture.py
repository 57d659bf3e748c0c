"""The pages that lead through the code agree with it: the picture of folders."""

from __future__ import annotations

from tests.repo.sources import DOCS
from tools import draw_folders

ARCHITECTURE = DOCS / "explanation" / "architecture.md"


def test_the_picture_of_folders_is_current() -> None:
    assert draw_folders.on_page(ARCHITECTURE.read_text(encoding="utf-8")) == draw_folders.drawn(), (
        "docs/explanation/architecture.md is old: run `python tools/draw_folders.py`"
    )


def test_an_arrow_that_others_imply_is_left_out() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert draw_folders.without_shortcuts(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_subfolders_count_as_their_folder_at_the_top() -> None:
    graph = {"": {"a/x"}, "a/x": {"a", "b"}, "a": {"b"}, "b": set()}
    assert draw_folders.top_level(graph) == {"plugin": {"a"}, "a": {"b"}, "b": set()}
