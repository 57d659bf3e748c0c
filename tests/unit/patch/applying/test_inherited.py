"""Tests of how a process comes by its patches."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.patch.applying import inherited, records
from pytest_cudafork.patch.applying.records import Record
from pytest_cudafork.settings import environment


@pytest.fixture
def spawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in for ``multiprocessing.spawn``."""
    module = SimpleNamespace(get_preparation_data=lambda name: {"name": name})
    monkeypatch.setitem(sys.modules, "multiprocessing.spawn", module)
    return module


@pytest.fixture
def folder(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch, spawn: Any) -> str:
    """Where patches of the package and of a variable lie."""
    for name in (environment.PATCHES, environment.ROOT, environment.PYTHON_PATH, "PATCHED_VAR"):
        monkeypatch.setenv(name, "")
    path = tmp_path / "patches of a test"
    path.mkdir()
    made = [
        Record("setattr", f"{package}.work", "answer", value=pickle.dumps(len)),
        Record("setenv", "", "PATCHED_VAR", value=b"set"),
    ]
    records.write(str(path), made)
    return str(path)


def test_without_patches_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.PATCHES, raising=False)
    inherited.apply_inherited()
    assert inherited.applied == {}


def test_those_of_the_environment_are_applied_once_and_its_variables_stay(
    folder: str, package: str
) -> None:
    os.environ[environment.PATCHES] = folder
    inherited.begin()
    work: Any = importlib.import_module(f"{package}.work")
    assert work.answer is len
    assert os.environ["PATCHED_VAR"] == ""
    work.answer = max
    inherited.apply_inherited()
    assert work.answer is max
    more = Record("setattr", f"{package}.work", "answer", value=pickle.dumps(min))
    records.write(folder, [*records.read(folder), more])
    inherited.apply_inherited()
    assert work.answer is min


def test_a_child_of_multiprocessing_gets_them_with_what_it_is_told_first(
    folder: str, package: str, spawn: Any
) -> None:
    undo = inherited.tell_multiprocessing(folder)
    told = pickle.loads(pickle.dumps(spawn.get_preparation_data("it")["cudafork_patches"]))
    assert told is None  # unpickling has applied them
    assert os.environ["PATCHED_VAR"] == "set"
    assert os.environ[environment.PATCHES] == folder
    assert importlib.import_module(f"{package}.work").answer is len
    undo.close()


def test_what_tells_multiprocessing_is_undone(folder: str, spawn: Any) -> None:
    undo = inherited.tell_multiprocessing(folder)
    assert set(spawn.get_preparation_data("it")) == {"name", "cudafork_patches"}
    undo.close()
    assert spawn.get_preparation_data("it") == {"name": "it"}


def test_what_tells_children_is_undone(folder: str) -> None:
    with contextlib.ExitStack() as undo:
        inherited.tell_children(undo, folder)
        assert os.environ[environment.PATCHES] == folder
        assert (Path(os.environ[environment.ROOT]) / "pytest_cudafork").is_dir()
        startup = os.environ[environment.PYTHON_PATH].split(os.pathsep)[0]
        assert (Path(startup) / "sitecustomize.py").is_file()
    assert os.environ[environment.PATCHES] == ""


def test_patches_of_a_test_that_is_over_are_told_as_missing(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ[environment.PATCHES] = f"{folder} gone"
    inherited.apply_inherited()
    assert "was over: it is not patched" in capsys.readouterr().err


def test_an_interpreter_that_cannot_be_patched_is_ended(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class LeftError(Exception):
        pass

    def leave(status: int) -> None:
        raise LeftError(status)

    monkeypatch.setattr(unpatched.os, "_exit", leave)
    monkeypatch.setitem(sys.modules, "patched_already", ModuleType("patched_already"))
    records.write(folder, [Record("setattr", "patched_already", "nothing", value=b"N.")])
    os.environ[environment.PATCHES] = folder
    with pytest.raises(LeftError, match="1"):
        inherited.begin()
    assert "has no attribute 'nothing'" in capsys.readouterr().err
    assert "has no attribute 'nothing'" in records.take_complaints(os.path.dirname(folder))
