"""The commands that the pages show are run, in the order of the page, and print what it shows."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo import doc_shell
from tests.repo.doc_runner import Walk, missing_in
from tests.repo.doc_shell import PAGES, REASONS, SIGNS, Step, key_of, page_of, steps_of, table
from tests.repo.sources import PROJECT


def name_of(page: Path) -> str:
    """A page's path below the project."""
    return page.relative_to(PROJECT).as_posix()


WALKED = [
    page
    for page in PAGES
    if any(key_of(step) not in page_of(name_of(page)).not_run for step in steps_of(page))
]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("path", WALKED, ids=name_of)
def test_the_commands_of_a_page_run_and_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    page = page_of(name_of(path))
    for module in page.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the page needs {module}")
    walk = Walk(path, page, tmp_path)
    wrong = []
    for step in steps_of(path):
        if key_of(step) not in page.not_run and (problem := walk.problem(step)):
            wrong.append(f"{step.page}:{step.line}: {key_of(step)}\n{problem}")
    assert not wrong, "\n\n".join(wrong)
