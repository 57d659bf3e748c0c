"""Debuggers in a process without a terminal: refused with words; those of the user's choice not."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import _pytest.debugging
import pytest

from pytest_cudafork.compat import debuggers
from tests.unit.compat import require


@pytest.fixture(autouse=True)
def debugger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The debugger of pytest; what is changed of it is undone."""
    made: Any = require("pytest", _pytest.debugging, "pytestPDB", "words for a breakpoint")
    for name in ("_init_pdb", "_config"):
        require("pytest", made, name, "words for a breakpoint")
        monkeypatch.setattr(made, name, made.__dict__[name])
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    return made


def _variable() -> str:
    return os.environ.get("PYTHONBREAKPOINT", "")


def _choose_debugger(debugger: Any) -> None:
    debugger._config = SimpleNamespace(getvalue={"usepdb_cls": ("a", "B")}.get)


@pytest.mark.parametrize("ask", [breakpoint, pytest.set_trace])
def test_a_breakpoint_says_how_to_reach_the_debugger(ask: Any) -> None:
    debuggers.refuse(_variable)
    debuggers.refuse(_variable)
    with pytest.raises(RuntimeError, match=r"need the terminal.*--pdb"):
        ask()


def test_another_hook_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: asked.append("mine"))
    debuggers.refuse(_variable)
    breakpoint()
    assert asked == ["mine"]


def test_the_variable_counts_as_it_is_when_the_breakpoint_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    debuggers.refuse(_variable)
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    breakpoint()


def test_a_debugger_of_the_users_choice_is_left_alone(
    debugger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, asked = debugger.__dict__["_init_pdb"], []
    _choose_debugger(debugger)
    monkeypatch.setattr("pdb.set_trace", lambda *args, **kwargs: asked.append("theirs"))
    debuggers.refuse(_variable)
    breakpoint()
    assert debugger.__dict__["_init_pdb"] is before
    assert asked == ["theirs"]


def test_without_pytest_there_is_pythons_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "_pytest.debugging")
    debuggers.refuse(_variable)
    with pytest.raises(RuntimeError, match="need the terminal"):
        breakpoint()
