"""What a module does to the interpreter is noticed, and put right before more is asked of it."""

from __future__ import annotations

import builtins
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pytest_cudafork.imports.worker.interpreter_state import InterpreterState, LoadedModules


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> InterpreterState:
    """The state of this process, in which tracers and timers stay as the test run needs them."""
    for name in ("settrace", "setprofile"):
        monkeypatch.setattr(sys, name, lambda function: None)
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: None)
    return InterpreterState(LoadedModules())


def test_nothing_has_changed_where_nothing_was_done(state: InterpreterState) -> None:
    assert not state.has_changed()
    assert state.added() == []


def test_new_modules_are_named_in_order(
    state: InterpreterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cudafork_b", "cudafork_a"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert state.added() == ["cudafork_b", "cudafork_a"]
    assert not state.has_changed()


def test_new_modules_are_named_where_others_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudafork_old", ModuleType("cudafork_old"))
    loaded = LoadedModules()
    monkeypatch.delitem(sys.modules, "cudafork_old")
    monkeypatch.setitem(sys.modules, "cudafork_new", ModuleType("cudafork_new"))
    assert loaded.added() is None
    assert loaded.looked_up() == ["cudafork_new"]
    assert InterpreterState(loaded).added() == ["cudafork_new"]


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "import": lambda patch, _: patch.setattr(builtins, "__import__", lambda *a, **k: None),
    "os": lambda patch, _: patch.setattr(os, "fork", lambda: 1),
    "modules": lambda patch, _: patch.setattr(sys, "modules", dict(sys.modules)),
    "folder": lambda patch, path: patch.chdir(path),
    "tracer": lambda patch, _: patch.setattr(sys, "gettrace", lambda: print),
    "timer": lambda patch, _: patch.setattr(signal, "getitimer", lambda which: (1.0, 0.0)),
    "child's end": lambda patch, _: patch.setattr(signal, "getsignal", lambda which: print),
    "recursion": lambda patch, _: patch.setattr(sys, "getrecursionlimit", lambda: 50),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    if name == "tracer":  # looked up when the state is noted
        before = InterpreterState(LoadedModules())
        before._tracers = ((lambda: print, sys.settrace), before._tracers[1])
        assert before.has_changed()
        return
    state: InterpreterState = request.getfixturevalue("state")
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[name](patch, tmp_path)
        changed = state.has_changed()
    assert changed


@pytest.mark.parametrize("name", ["PYTORCH_NVML_BASED_CUDA_CHECK", "CUDA_VISIBLE_DEVICES"])
def test_a_variable_that_decides_what_touches_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "0")
    state = InterpreterState(LoadedModules())
    assert not state.decides()
    monkeypatch.setenv(name, "1")
    assert state.decides()
    assert not state.has_changed()
    monkeypatch.delenv(name)
    assert state.decides()


def test_it_is_restored(state: InterpreterState) -> None:
    modules, plain_import, fork = sys.modules, builtins.__import__, os.fork
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fork", lambda: 1)
        patch.setattr(sys, "modules", {})
        builtins.__import__ = lambda *a, **k: None  # type: ignore[assignment]
        state.restore()
        after = (sys.modules, builtins.__import__, os.fork)
    assert after == (modules, plain_import, fork)
    assert not state.has_changed()


def test_modules_that_were_removed_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudafork_old", ModuleType("cudafork_old"))
    for name in ("settrace", "setprofile"):
        monkeypatch.setattr(sys, name, lambda function: None)
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: None)
    state = InterpreterState(LoadedModules())
    old = sys.modules.pop("cudafork_old")
    state.restore()
    assert sys.modules["cudafork_old"] is old
