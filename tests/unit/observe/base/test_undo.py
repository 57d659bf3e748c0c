"""Changes are taken back, last first, whatever one of the steps does."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_cudafork.observe.base.undo import UndoStack, only_here


class Base:
    """Has what a class below it inherits."""

    name = "base"


class Derived(Base):
    """Inherits it."""


def test_an_attribute_comes_back() -> None:
    owner = SimpleNamespace(name="before")
    undo = UndoStack()
    undo.set(owner, "name", "one")
    undo.set(owner, "name", "two")
    assert owner.name == "two"
    undo()
    assert owner.name == "before"


def test_what_was_not_there_is_deleted() -> None:
    owner = SimpleNamespace()
    with UndoStack() as undo:
        undo.set(owner, "name", "here")
        assert owner.name == "here"
    assert not hasattr(owner, "name")


def test_what_was_inherited_is_inherited_again() -> None:
    with UndoStack() as undo:
        undo.set(Derived, "name", "own")
        assert Derived.name == "own"
    assert "name" not in vars(Derived)
    assert Derived.name == "base"


def test_somebody_who_deleted_it_meanwhile_is_not_disturbed() -> None:
    owner = SimpleNamespace()
    with UndoStack() as undo:
        undo.set(owner, "name", "here")
        del owner.name
    assert not hasattr(owner, "name")


def test_every_step_is_taken_once_last_first() -> None:
    steps: list[int] = []
    undo = UndoStack()
    for number in range(3):
        undo.add(lambda number=number: steps.append(number))  # type: ignore[misc]
    undo()
    undo()
    assert steps == [2, 1, 0]


def test_a_step_that_fails_stops_no_other() -> None:
    steps: list[str] = []
    undo = UndoStack()
    undo.add(lambda: steps.append("first"))
    undo.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        undo()
    assert steps == ["first"]


def test_a_step_that_is_for_one_process_is_not_taken_in_its_child(tmp_path: Path) -> None:
    file = tmp_path / "of both"
    file.touch()
    step = only_here(file.unlink)
    pid = os.fork()
    if pid == 0:
        try:
            step()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert file.exists()
    step()
    assert not file.exists()
