"""Tests of the fixture's object, in this process; sessions test what children make of it."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.errors import ChildError
from pytest_cudafork.observe.handed_on import STARTUP
from pytest_cudafork.patch.applying import records
from pytest_cudafork.patch.child_patch import ChildPatch
from pytest_cudafork.settings import environment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test."""
    monkeypatch.delenv(environment.PATCHES, raising=False)
    made = tmp_path / "of the test"
    made.mkdir()
    return made


@pytest.fixture
def patch(folder: Path) -> Iterator[ChildPatch]:
    """The object."""
    patch = ChildPatch(str(folder))
    yield patch
    patch.undo()


def found() -> str:
    """Return the folder that children would find."""
    return os.environ[environment.PATCHES]


@pytest.fixture
def work(package: str) -> Any:
    """The module, imported."""
    return importlib.import_module(f"{package}.work")


def test_it_patches_this_process_tells_children_and_undoes_it(
    patch: ChildPatch, work: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHED_VAR", "old")
    monkeypatch.setenv("PATCHED_GONE", "old")
    before = dict(os.environ)
    name = work.__name__
    patch.setattr(f"{name}.answer", lambda: "patched")
    patch.setattr(work.Engine, "step", lambda self: "patched step")
    patch.setattr(work, "new", 5, raising=False)
    patch.setitem(f"{name}.CONFIG", "b", {1})
    patch.delitem(f"{name}.CONFIG", "a")
    patch.delattr(work.Engine, "static")
    patch.delattr(f"{name}.nothing", raising=False)
    patch.setenv("PATCHED_VAR", "new", prepend=":")
    patch.delenv("PATCHED_GONE")
    assert (work.answer(), work.Engine().step(), work.new) == ("patched", "patched step", 5)
    assert dict(work.CONFIG) == {"b": {1}}
    assert not hasattr(work.Engine, "static")
    assert os.environ["PATCHED_VAR"] == "new:old"
    assert "PATCHED_GONE" not in os.environ
    assert os.path.dirname(found()) == str(folder)
    kinds = [one.kind for one in records.read(found())]
    assert kinds == [
        *["setattr"] * 3,
        "setitem",
        "delitem",
        "delattr",
        "delattr",
        "setenv",
        "delenv",
    ]
    patch.undo()
    patch.undo()
    assert (work.answer(), work.Engine().step()) == ("real", "real step")
    assert work.CONFIG == {"a": 1}
    assert work.Engine.static() == "real static"
    assert not hasattr(work, "new")
    assert dict(os.environ) == before
    assert not list(folder.iterdir())


def test_a_variable_may_hold_any_bytes(patch: ChildPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATCHED_VAR", raising=False)
    patch.setenv("PATCHED_VAR", os.fsdecode(b"\xff"))
    assert os.environb[b"PATCHED_VAR"] == b"\xff"
    patch.undo()
    assert "PATCHED_VAR" not in os.environ


@pytest.mark.parametrize("former", [None, "/of/the/user"])
def test_python_s_path_keeps_the_way_of_patches_to_children(
    patch: ChildPatch, work: Any, monkeypatch: pytest.MonkeyPatch, former: str | None
) -> None:
    if former is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", former)
    patch.setenv("PYTHONPATH", "/of/the/test")
    assert os.environ["PYTHONPATH"] == f"{STARTUP}{os.pathsep}/of/the/test"
    patch.setenv("PYTHONPATH", "/first", prepend=os.pathsep)
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ["/first", STARTUP, "/of/the/test"]
    patch.delenv("PYTHONPATH")
    assert os.environ["PYTHONPATH"] == STARTUP
    patch.undo()
    assert os.environ.get("PYTHONPATH") == former


def test_threads_may_patch_at_the_same_time(patch: ChildPatch, work: Any) -> None:
    threads = 8
    at_once = threading.Barrier(threads)
    told: list[Exception] = []

    def add(number: int) -> None:
        at_once.wait()
        try:
            for one in range(10):
                patch.setattr(work, f"new_{number}_{one}", number, raising=False)
        except Exception as error:
            told.append(error)

    started = [threading.Thread(target=add, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not told
    assert len(records.read(found())) == threads * 10
    patch.undo()
    assert not [name for name in vars(work) if name.startswith("new_")]


class _Patching(type):
    """Of classes that patch something else where one of their attributes is set."""

    patch: Callable[[], None]

    def __setattr__(cls, name: str, value: object) -> None:
        if name == "outer":
            _Patching.patch()
        super().__setattr__(name, value)


def test_what_a_patch_calls_may_patch_as_well(patch: ChildPatch, work: Any) -> None:
    work.Odd = _Patching("Odd", (), {"__module__": work.__name__, "outer": 1})
    _Patching.patch = lambda: patch.setattr(work, "answer", "inner")
    pid = os.fork()
    if pid == 0:
        told = 0
        try:
            signal.alarm(30)  # it would wait for ever
            patch.setattr(work.Odd, "outer", 2)
            told = len(records.read(found()))
            both = (work.Odd.outer, work.answer) == (2, "inner")
            _Patching.patch = lambda: None
            patch.undo()
        finally:
            os._exit(
                0 if told == 2 and both and work.Odd.outer == 1 and callable(work.answer) else 1
            )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_complaint_is_told_whatever_the_test_has_replaced(
    patch: ChildPatch, work: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch.setattr(f"{work.__name__}.answer", len)
    records.complain(found(), "it has no such attribute")
    with monkeypatch.context() as replaced:
        replaced.setattr("os.getpid", lambda: 1)
        replaced.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        replaced.setattr("pickle.loads", lambda data: None)
        with pytest.raises(ChildError, match="no such attribute"):
            patch.undo()
    assert not list(folder.iterdir())


def test_what_is_not_imported_is_patched_when_it_is(patch: ChildPatch, package: str) -> None:
    patch.setattr(f"{package}.work.answer", len)
    assert f"{package}.work" not in sys.modules
    assert importlib.import_module(f"{package}.work").answer is len
    patch.undo()
    assert sys.modules[f"{package}.work"].answer() == "real"


def test_two_patches_of_one_place_are_undone_after_a_reload(patch: ChildPatch, work: Any) -> None:
    json: Any = importlib.import_module("json")
    real = json.JSONEncoder.default
    for value in (len, max):
        patch.setattr("json.JSONEncoder.default", value)  # the reload leaves this class alone
        patch.setattr(work, "answer", value)
    importlib.reload(json)
    importlib.reload(work)
    assert (json.JSONEncoder.default, work.answer) == (max, max)
    patch.undo()
    assert json.JSONEncoder.default is real
    assert work.answer() == "real"


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "no such attribute": (lambda p: p.setattr("WORK.none", 1), AttributeError, "no attribute"),
    "no such package": (lambda p: p.setattr("no_such_one.x", 1), ModuleNotFoundError, "no module"),
    "no such key": (lambda p: p.delitem("WORK.CONFIG", "z"), KeyError, "no such key"),
    "no such variable": (lambda p: p.delenv("NO_SUCH_VAR"), KeyError, "no such variable"),
    "no value": (lambda p: p.setattr("WORK.answer"), TypeError, "a dotted name and a value"),
    "thing and value": (lambda p: p.setattr(os, 1), TypeError, "a dotted name and a value"),
    "no text": (lambda p: p.setattr(os, 1, 2), TypeError, "the name of an attribute is a text"),
    "an object": (lambda p: p.setattr(object(), "a", 2), TypeError, "cannot find"),
    "a thing alone": (lambda p: p.delattr(os), TypeError, "a thing and a name"),
    "a dict": (lambda p: p.setitem({}, "a", 1), TypeError, "given by its dotted name"),
    "os.environ": (lambda p: p.delitem(os.environ, "A"), TypeError, "setenv and delenv"),
    "number": (lambda p: p.setenv("A", 1), TypeError, "both are texts"),
    "no name": (lambda p: p.setenv("", ""), ValueError, "setenv: ''='': no environment can hold"),
    "two names": (lambda p: p.setenv("A=B", "x"), ValueError, "no environment can hold that"),
    "null": (lambda p: p.setenv("A", "x\0y"), ValueError, "no environment can hold that"),
    "prepend": (lambda p: p.setenv("A", "x", prepend=1), TypeError, "prepend=1 is to be a text"),
    "half a character": (lambda p: p.setenv("A", "\ud800"), ValueError, "no environment can hold"),
    "name of a number": (lambda p: p.delenv(3), TypeError, "the name of a variable is a text"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_patched_is_told_at_once_and_changes_nothing(
    patch: ChildPatch, work: Any, case: str
) -> None:
    call, error, words = WRONG[case]

    class Filled:
        """Puts the module's name into dotted names."""

        def __getattr__(self, name: str) -> Any:
            def run(*args: Any, **kwargs: Any) -> None:
                filled = [
                    one.replace("WORK", work.__name__) if isinstance(one, str) else one
                    for one in args
                ]
                getattr(patch, name)(*filled, **kwargs)

            return run

    with pytest.raises(error, match=words):
        call(Filled())
    patch.undo()


@pytest.mark.parametrize("what", ["key", "value"])
def test_what_cannot_travel_is_refused_by_its_name(patch: ChildPatch, work: Any, what: str) -> None:
    key: object = threading.Lock() if what == "key" else "a"
    value: object = threading.Lock() if what == "value" else 1
    words = rf"CONFIG'\): the {what}, a _thread.lock, cannot be sent"
    with pytest.raises(ChildError, match=words):
        patch.setitem(f"{work.__name__}.CONFIG", key, value)
    assert work.CONFIG == {"a": 1}


def test_a_complaint_of_a_child_fails_the_undo(patch: ChildPatch, work: Any, folder: Path) -> None:
    patch.setattr(f"{work.__name__}.answer", len)
    records.complain(found(), "it has no such attribute")
    with pytest.raises(ChildError, match=r"could not be applied:\nprocess .*no such attribute"):
        patch.undo()
    assert work.answer() == "real"
    assert not list(folder.iterdir())


def test_a_forked_child_that_cannot_apply_one_lets_the_test_know(
    patch: ChildPatch, package: str
) -> None:
    patch.setattr(f"{package}.work.nothing", 1)
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(f"{package}.work")
        except AttributeError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    with pytest.raises(ChildError, match="has no attribute 'nothing'"):
        patch.undo()


def test_patches_of_the_process_that_started_this_one_hold_on(
    patch: ChildPatch, work: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    outer = records.Record("setenv", "", "PATCHED_OUTER", value=b"1")
    records.write(str(tmp_path), [outer])
    monkeypatch.setenv(environment.PATCHES, str(tmp_path))
    patch.setattr(f"{work.__name__}.answer", len)
    assert records.read(found())[0] == outer
    patch.undo()
    assert os.environ[environment.PATCHES] == str(tmp_path)


def in_a_fork(work: Callable[[], Any]) -> str:
    """Run this in a forked child and return what it returned, in words."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = repr(work())
        except BaseException as error:
            told = repr(error)
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return told


@pytest.mark.parametrize("before", [True, False], ids=["patched before", "not before"])
@pytest.mark.parametrize("way", ["forked", "copied"])
def test_what_a_child_patches_is_found_by_its_children_alone(
    patch: ChildPatch, work: Any, way: str, before: bool
) -> None:
    if before:
        patch.setattr(f"{work.__name__}.answer", len)
    outside = os.environ.get(environment.PATCHES)

    def child() -> tuple[list[str], Any]:
        mine = pickle.loads(pickle.dumps(patch)) if way == "copied" else patch
        mine.setattr(work, "new", 5, raising=False)
        inside = [one.path for one in records.read(found())]
        mine.undo()
        return inside, os.environ.get(environment.PATCHES) == (outside if way == "copied" else None)

    assert in_a_fork(child) == repr((["answer", "new"] if before else ["new"], True))
    assert os.environ.get(environment.PATCHES) == outside
    if outside:
        assert [one.path for one in records.read(outside)] == ["answer"]
    patch.undo()


def test_what_the_children_of_a_child_cannot_apply_fails_the_test(
    patch: ChildPatch, work: Any, package: str
) -> None:
    def child() -> str:
        with pytest.raises(AttributeError):
            patch.setattr(work, "nothing", 1)  # told to whoever patches, and to nobody else
        patch.setattr(f"{package}.later.nothing", 1)
        return in_a_fork(lambda: importlib.import_module(f"{package}.later"))

    Path(work.__file__).with_name("later.py").touch()
    assert "has no attribute" in in_a_fork(child)
    with pytest.raises(ChildError) as caught:
        patch.undo()
    assert str(caught.value).count("has no attribute") == 1
    assert "later.nothing" in str(caught.value)


def test_a_child_that_is_forked_while_another_thread_patches_can_patch(
    patch: ChildPatch, work: Any
) -> None:
    patch.setattr(work, "answer", len)
    (lock,) = patch._locks.values()
    with lock:  # as the other thread would
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)  # its default action ends a process that waits for ever
            threads = [
                threading.Thread(
                    target=patch.setattr, args=(work, f"new_{one}", one), kwargs={"raising": False}
                )
                for one in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            # one lock for all of them, or patches get lost
            kept = len(records.read(found())) == 5 and len(patch._locks) == 2
            os._exit(0 if kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
