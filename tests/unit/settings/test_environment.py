"""Variables are read as they are now, and changes to them are taken back."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

import pytest

from pytest_cudafork.settings import environment
from tests.repo.sources import DOCS, PACKAGE, PROJECT

NAME = "CUDAFORK_TEST_VARIABLE"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the variable, and end as it was."""
    monkeypatch.setenv(NAME, "")
    monkeypatch.delenv(NAME)


def test_a_variable_that_is_not_set_is_empty_or_none() -> None:
    assert environment.value(NAME) == ""
    assert environment.value(NAME, "1") == "1"
    assert environment.optional(NAME) is None
    assert not environment.is_set(NAME)
    assert environment.take(NAME) == ""


def test_an_empty_variable_is_set() -> None:
    environment.put(NAME, "")
    assert environment.is_set(NAME)
    assert environment.optional(NAME) == ""


def test_what_is_taken_is_gone() -> None:
    environment.put(NAME, "here")
    assert environment.take(NAME) == "here"
    assert NAME not in os.environ


def test_changes_are_undone_last_first() -> None:
    environment.put(NAME, "first")
    with contextlib.ExitStack() as undo:
        environment.set_variable(undo, NAME, "second")
        environment.unset_variable(undo, NAME)
        assert not environment.is_set(NAME)
        environment.set_variable(undo, NAME, "third")
        assert environment.value(NAME) == "third"
    assert environment.value(NAME) == "first"


def test_what_was_not_set_is_not_set_again() -> None:
    with contextlib.ExitStack() as undo:
        environment.unset_variable(undo, NAME)
        environment.set_variable(undo, NAME, "here")
    assert not environment.is_set(NAME)


def test_a_test_that_removes_a_variable_disturbs_no_undo() -> None:
    with contextlib.ExitStack() as undo:
        environment.set_variable(undo, NAME, "here")
        del os.environ[NAME]
    assert not environment.is_set(NAME)


@pytest.mark.parametrize(
    ("former", "expected"),
    [(None, "/new"), ("", "/new"), ("/a:/b", "/new:/a:/b"), ("/a:/new", "/a:/new")],
)
def test_a_folder_comes_first_once(former: str | None, expected: str) -> None:
    if former is not None:
        environment.put(NAME, former)
    with contextlib.ExitStack() as undo:
        environment.prepend_path(undo, NAME, "/new")
        assert environment.value(NAME) == expected
    assert environment.optional(NAME) == former


@pytest.mark.parametrize("table", [environment.INTERNAL, environment.CHANGED, environment.READ])
def test_every_variable_says_what_it_is_for(table: Mapping[str, str]) -> None:
    assert all(table.values())


def test_internal_variables_have_the_prefix_and_are_all_listed() -> None:
    assert all(name.startswith(environment.PREFIX) for name in environment.INTERNAL)
    sources = [path for kind in ("*.py", "*.c", "*.h") for path in (PROJECT / PACKAGE).rglob(kind)]
    used = {
        name
        for path in sources
        for name in re.findall(r'"(_CUDAFORK_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    # Of one test of the library in C alone.
    assert used - {environment.PREFIX, "_CUDAFORK_PATCH_CHILD"} == set(environment.INTERNAL)


@pytest.mark.parametrize("name", environment.CHANGED)
def test_the_reference_tells_of_what_is_changed(name: str) -> None:
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    assert f"`{name}`" in page
