"""Tests of which functions travel by value, and of classes and filters on their way."""

from __future__ import annotations

import importlib
import importlib.abc
import json
import os
import pickle
import signal
import socket
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from pytest_cudafork.call import pickling
from pytest_cudafork.errors import ChildError


def test_a_call_of_a_test_module_needs_no_module_there() -> None:
    data = pickling.dump_call(test_a_call_of_a_test_module_needs_no_module_there, (), {})
    assert b"needs_no_module_there" in data
    fn, args, kwargs = pickle.loads(pickling.dump_call(json.dumps, ([1],), {"indent": None}))
    assert fn is json.dumps
    assert (args, kwargs) == (([1],), {"indent": None})
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_while_another_thread_pickles_modules_stay_by_value() -> None:
    other = pickling.modules_by_value()
    with pickling.modules_by_value():
        other.__enter__()
        before = cloudpickle.list_registry_pickle_by_value()
    assert __name__ in before
    assert cloudpickle.list_registry_pickle_by_value() == before
    with pickling.modules_by_value():
        other.__exit__(None, None, None)
        assert cloudpickle.list_registry_pickle_by_value() == before
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_what_a_user_has_registered_stays_registered() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pickling.modules_by_value():
            pass
        assert cloudpickle.list_registry_pickle_by_value() == {__name__}
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_what_interrupts_a_registration_may_pickle_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(change: Callable[[types.ModuleType], None]) -> Callable[..., None]:
        def first_pickle(module: types.ModuleType) -> None:
            if not dumped:
                dumped.append(b"")
                dumped[0] = pickling.dump_call(print, (), {})
            change(module)

        return first_pickle

    for name in ("register_pickle_by_value", "unregister_pickle_by_value"):
        dumped: list[bytes] = []
        with monkeypatch.context() as patch:
            patch.setattr(cloudpickle, name, interrupted(getattr(cloudpickle, name)))
            pid = os.fork()
            if pid == 0:
                try:
                    signal.alarm(30)  # it would wait for ever
                    with pickling.modules_by_value():
                        kept = __name__ in cloudpickle.list_registry_pickle_by_value()
                    gone = not cloudpickle.list_registry_pickle_by_value()
                finally:
                    os._exit(0 if dumped and kept and gone else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, name


def test_a_child_that_is_forked_while_a_thread_registers_modules_may_pickle() -> None:
    with pickling._BY_VALUE._lock:
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(30)  # it would wait for ever
                pickling.dump_call(print, (), {})
            finally:
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_does_not_pickle_is_told() -> None:
    words = r"the argument number 0 of .*print.* a builtins.dict, cannot .*found at \['a'\]"
    with socket.socket() as sock, pytest.raises(ChildError, match=words):
        pickling.dump_call(print, ({"a": sock},), {})


def test_filters_travel_one_by_one() -> None:
    class LocalWarning(UserWarning):
        def __reduce__(self) -> str:
            return "no"

    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error", DeprecationWarning)
        warnings.filterwarnings("ignore", "this", UserWarning)
        kept = [pickle.loads(one) for one in pickle.loads(pickling.dump_filters())]
    assert [(action, category) for action, _, category, _, _ in kept] == [
        ("ignore", UserWarning),
        ("error", DeprecationWarning),
    ]
    assert kept[0][1].match("this is it")


def test_local_classes_that_a_call_mentions_are_known_again() -> None:
    class LocalError(Exception):
        pass

    class Owner:
        def method(self, error: type = LocalError, *, other: object = None) -> object:
            return error, other

    def function() -> object:
        return LocalError, empty

    if len(sys.argv) > 10**6:  # never: the cell stays empty
        empty = 1
    pickling.remember_classes(function, (Owner().method,), {"x": LocalError()})
    assert cloudpickle.loads(cloudpickle.dumps(LocalError)) is LocalError
    assert cloudpickle.loads(cloudpickle.dumps(Owner)) is Owner


def test_modules_made_by_hand_go_by_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = types.ModuleType("cudafork_made")
    assert not pickling._goes_by_value(made, {})  # nobody can import it from anywhere
    monkeypatch.setitem(sys.modules, "cudafork_made", made)
    assert pickling._goes_by_value(made, {})
    assert not pickling._goes_by_value(json, {})
    assert not pickling._goes_by_value("no module", {})
    assert not pickling._goes_by_value(sys.modules["__main__"], {})
    made.__file__ = str(tmp_path / "conftest.py")
    assert pickling._goes_by_value(made, {})


def test_a_module_on_the_path_goes_by_reference_and_one_that_is_not_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("__init__", "part"):
        (tmp_path / "pkg" / f"{name}.py").write_text("")
    (tmp_path / "pkg").rename(tmp_path / "cudafork_pkg")
    monkeypatch.syspath_prepend(str(tmp_path))
    part = __import__("cudafork_pkg.part").part
    assert not pickling._goes_by_value(part, {})
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])
    assert pickling._goes_by_value(part, {})
    del sys.modules["cudafork_pkg"]  # for good: the next test of this process must not find it
    assert pickling._goes_by_value(part, {})
    del sys.modules["cudafork_pkg.part"]


def test_each_package_is_looked_for_once_a_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, names = tmp_path, []
    for package in ("cudafork_outer", "inner", "innermost"):
        folder = folder / package
        folder.mkdir()
        for name in ("__init__", "one", "two"):
            (folder / f"{name}.py").write_text("")
        parts = folder.relative_to(tmp_path).parts
        names += [".".join([*parts, *last]) for last in ((), ("one",), ("two",))]
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in names:
        importlib.import_module(name)
    asked: list[str] = []

    class Listener(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
            asked.append(fullname)

    monkeypatch.setattr(sys, "meta_path", [Listener(), *sys.meta_path])
    for _ in range(2):  # what was importable need not be so at the next call
        with pickling.modules_by_value():
            assert not cloudpickle.list_registry_pickle_by_value() & set(names)
        assert sorted(one for one in asked if one.startswith("cudafork_outer")) == sorted(names)
        asked.clear()
    for name in names:
        del sys.modules[name]
