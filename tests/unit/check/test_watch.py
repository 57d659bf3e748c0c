"""A watch begins and ends, nests in another one, and is inherited by a Python process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.check import watch as watches
from pytest_cudafork.check.watch import (
    Watch,
    begin_inherited,
    inherited_settings,
    inherited_watch,
)
from pytest_cudafork.observe import observer, witnesses
from pytest_cudafork.observe.handed_on import WatchSettings, variables_for_program
from pytest_cudafork.settings import environment


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No watch of this very session, no witnesses, and the real ``os.fork`` at the end."""
    monkeypatch.setattr(watches, "_nested", [])
    monkeypatch.setattr(
        witnesses, "install", lambda device, record, poisoned: witnesses.Witnesses("made up")
    )
    inherited_watch.cache_clear()
    before = os.fork, variables()
    yield
    inherited_watch.cache_clear()
    assert (os.fork, variables()) == before


def variables() -> dict[str, str | None]:
    """Return what a watch changes of the environment."""
    names = [*environment.INTERNAL, environment.PYTHON_PATH]
    return {name: environment.optional(name) for name in names}


def watch_at(tmp_path: Path, name: str = "ledger", level: str = "fork") -> Watch:
    """Return a watch with a ledger of its own."""
    made = Watch(WatchSettings(str(tmp_path / name), "absent", level), name)
    made.observer.ledger.create()
    return made


def test_a_watch_guards_forks_and_hands_itself_on(tmp_path: Path) -> None:
    fork = os.fork
    watch = watch_at(tmp_path)
    watch.begin()
    try:
        assert os.fork is not fork
        first = environment.value(environment.PYTHON_PATH).split(os.pathsep)[0]
        assert os.path.isfile(os.path.join(first, "sitecustomize.py"))
        root = environment.value(environment.ROOT)
        assert os.path.isdir(os.path.join(root, "pytest_cudafork"))
        assert inherited_settings() == watch.observer.settings
    finally:
        watch.end()


def test_an_inner_watch_lets_the_outer_rest(tmp_path: Path) -> None:
    outer, inner = watch_at(tmp_path, "outer"), watch_at(tmp_path, "inner")
    outer.begin()
    inner.begin()
    assert environment.value(environment.OWNER) == "inner"
    assert outer.observer.witnesses is None
    inner.end()
    assert environment.value(environment.OWNER) == "outer"
    assert outer.observer.witnesses is not None
    outer.end()
    outer.end()


def test_a_watch_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = watch_at(tmp_path, "outer"), watch_at(tmp_path, "inner")
    outer.begin()

    def refuse(rules: Any) -> Any:
        raise RuntimeError("no guard")

    with monkeypatch.context() as patch:
        patch.setattr(watches, "install_guard", refuse)
        patch.setattr(outer, "_start", lambda: None)  # it would fail in the same way
        with pytest.raises(RuntimeError, match="no guard"):
            inner.begin()
        assert environment.optional(environment.OWNER) != "inner"
    outer.end()


@pytest.mark.parametrize("text", ["", "no json", "{}"])
def test_a_variable_of_somebody_else_is_no_watch(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.WATCH, text)
    assert inherited_settings() is None
    assert inherited_watch() is None
    begin_inherited()
    monkeypatch.undo()


def test_an_inherited_watch_is_for_the_same_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = watch_at(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv(environment.WATCH, outer.observer.settings.to_text())
        patch.setenv(environment.OWNER, "4711")
        begin_inherited()
        inherited = inherited_watch()
        assert inherited is not None
        assert inherited.observer.owner == "4711"
        assert [record["k"] for record in outer.observer.records()] == ["process"]
        inherited.end()


def test_a_touch_is_written_before_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that touches just then may be a daemon, which ends with the process."""
    outer = watch_at(tmp_path)
    at_exit: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setenv(environment.WATCH, outer.observer.settings.to_text())
        patch.setattr(atexit, "register", at_exit.append)
        begin_inherited()
        inherited = inherited_watch()
        assert inherited is not None
        answers = [True, True, False, False]
        patch.setattr(witnesses.Witnesses, "is_writing", lambda self: answers.pop(0))
        (at_the_end,) = at_exit
        at_the_end()
        assert answers == []
        assert outer.observer.lost_records() == ()
        patch.setattr(observer, "_MOST_UNWRITTEN", 0.0)
        answers[:] = [True, True]
        at_the_end()
        assert len(outer.observer.lost_records()) == 1
        inherited.end()


def test_a_detailed_watch_tells_with_which_eyes_and_what_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = watch_at(tmp_path)
    settings = outer.observer.settings._replace(detailed=True)
    variables = variables_for_program(settings, "4711", {"PYTHONPATH": "a:b"})
    startup, *others = variables.pop(environment.PYTHON_PATH).split(os.pathsep)
    assert others == ["a", "b"]
    assert os.path.isfile(os.path.join(startup, "sitecustomize.py"))
    again = {environment.PYTHON_PATH: os.pathsep.join([startup, "a"])}
    told_again = variables_for_program(settings, "4711", again)
    assert told_again[environment.PYTHON_PATH] == again[environment.PYTHON_PATH]
    alone = variables_for_program(settings, "4711", {})
    assert alone[environment.PYTHON_PATH] == startup
    with monkeypatch.context() as patch:
        for name, text in variables.items():
            patch.setenv(name, text)
        begin_inherited()
        inherited = inherited_watch()
        assert inherited is not None
        before = multiprocessing.get_start_method(allow_none=True)
        multiprocessing.set_start_method(before, force=True)
        process: Any = multiprocessing.get_context("spawn").Process(target=print)
        process._popen = object()  # started already: nothing happens
        with pytest.raises(AssertionError):
            process.start()
        kinds = [record["k"] for record in outer.observer.records()]
        assert kinds == ["process", "watch", "method", "start"]
        inherited.end()


@pytest.mark.parametrize("stderr", [True, False])
def test_a_process_that_cannot_be_watched_goes_on(
    stderr: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(self: Watch) -> None:
        raise OSError("no disk")

    with monkeypatch.context() as patch:
        patch.setenv(environment.WATCH, watch_at(tmp_path).observer.settings.to_text())
        patch.setattr(Watch, "begin", fail)
        if not stderr:
            patch.setattr(sys, "stderr", None)
        begin_inherited()
    told = capsys.readouterr().err
    assert ("is not watched: no disk" in told) == stderr
