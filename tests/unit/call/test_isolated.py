"""Tests of the decorator, on functions that are called here; sessions have tests of their own."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import pytest_cudafork
from pytest_cudafork.call import isolated as module
from pytest_cudafork.call.isolated import isolated, run_here
from pytest_cudafork.check import state
from pytest_cudafork.compat import torch_internals
from pytest_cudafork.errors import ChildCrashed, ChildError, ChildTimeout, CudaForkError
from pytest_cudafork.process.forking import freeze_before_fork
from tests.support.isolation import METHODS


def test_it_is_public() -> None:
    assert pytest_cudafork.isolated is isolated


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_a_function_runs_in_a_process_of_its_own_whenever_it_is_called(method: Any) -> None:
    @isolated(method=method, timeout=60, env={"CUDAFORK_OF_CHILD": "yes"})
    def work(number: int, *, more: int = 0) -> tuple[int, int, str]:
        """Say where it is."""
        return os.getpid(), number + more, os.environ["CUDAFORK_OF_CHILD"]

    first, second = work(1), work(2, more=3)
    assert first[1:] == (1, "yes")
    assert second[1:] == (5, "yes")
    assert len({first[0], second[0], os.getpid()}) == 3
    assert "CUDAFORK_OF_CHILD" not in os.environ
    assert work.__doc__ == "Say where it is."


def test_in_its_own_child_it_runs_in_place() -> None:
    @isolated(method="fork")
    def down(depth: int) -> list[int]:
        return [os.getpid(), *(down(depth - 1) if depth else [])]

    # No fork of this process: an earlier test may have had a CUDA build of torch try to initialize,
    # which leaves its mark on forks even where there is no driver.
    @isolated(method="forkserver")
    def other() -> list[int]:
        return [os.getpid(), *down(1)]

    pids = down(2)
    assert len(pids) == 3
    assert len({*pids, os.getpid()}) == 2
    outer, *inner = other()  # another function has a process of its own, wherever it is called
    assert len({outer, *inner}) == 2


class Things:
    """Methods of each kind."""

    kind = "plain"

    def __init__(self) -> None:
        self.value = 4

    @isolated(method="fork")
    def method(self) -> tuple[int, int]:
        """Return the value, and where it was read."""
        return self.value, os.getpid()

    @isolated(method="fork")
    @staticmethod
    def static() -> int:
        """Return where it was called."""
        return os.getpid()

    @isolated(method="fork")
    @classmethod
    def of_class(cls) -> tuple[str, int]:
        """Return what it is bound to, and where it was called."""
        return cls.kind, os.getpid()


def test_methods_of_each_kind_run_elsewhere() -> None:
    value, pid = Things().method()
    kind, other = Things.of_class()
    assert (value, kind) == (4, "plain")
    assert os.getpid() not in (pid, other, Things.static())


@pytest.mark.parametrize("method", METHODS)
def test_outcomes_come_home_as_they_are(method: Any) -> None:
    @isolated(method=method)
    def work(what: str) -> None:
        if what == "skip":
            pytest.skip("not here")
        if what == "fail":
            pytest.fail("on purpose")
        if what == "die":
            os._exit(3)
        raise KeyError(what)

    with pytest.raises(pytest.skip.Exception, match="not here"):
        work("skip")
    with pytest.raises(pytest.fail.Exception, match="on purpose"):
        work("fail")
    with pytest.raises(KeyError, match="other"):
        work("other")
    with pytest.raises(ChildError, match=r"work \("):
        work("die")


def test_a_hang_ends_at_the_time_limit() -> None:
    @isolated(method="fork", timeout=0.3)
    def hang() -> None:
        threading.Event().wait()

    with pytest.raises(ChildTimeout, match="hang"):
        hang()


def test_a_death_is_told() -> None:
    @isolated(method="fork", timeout=float("inf"))
    def die() -> None:
        os.kill(os.getpid(), 11)

    with pytest.raises(ChildCrashed, match="SIGSEGV"):
        die()


def test_an_argument_that_cannot_travel_is_named() -> None:
    @isolated(method="spawn")
    def work(lock: object, *more: object, last: object = None) -> None: ...

    with pytest.raises(
        ChildError, match=r"the argument 'lock' of .*work.*, a _thread.lock, cannot"
    ):
        work(threading.Lock())
    with pytest.raises(ChildError, match="the argument number 2 of"):
        work(1, 2, threading.Lock())
    with pytest.raises(ChildError, match="the argument 'last' of"):
        work(1, last=threading.Lock())


def test_auto_takes_a_clean_process_where_a_fork_would_not_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(**options: Any) -> str:
        isolation = module._Isolation(os.getpid, {**module._DEFAULTS, **options})
        return isolation._method()

    verdict = SimpleNamespace(value="clean")
    monkeypatch.setattr(state, "state_here", lambda watch: SimpleNamespace(verdict=verdict))
    monkeypatch.setattr(freeze_before_fork, "count_threads", lambda: 1)
    monkeypatch.setattr(torch_internals, "without_fork", lambda: "")
    assert chosen() == "fork"
    assert chosen(env={"A": "1"}) == "forkserver"
    assert chosen(method="fork", env={"A": "1"}) == "fork"
    monkeypatch.setattr(freeze_before_fork, "count_threads", lambda: 2)
    assert chosen() == "forkserver"
    verdict.value = "initialized"
    assert chosen() == "forkserver"
    with pytest.raises(CudaForkError, match="Nothing was forked"):
        chosen(method="fork")
    monkeypatch.setattr(torch_internals, "without_fork", lambda: "ROCm")
    assert chosen() == "spawn"


WRONG = {
    "unknown": ({"how": "fork"}, TypeError, "argument 'how': it takes method, "),
    "method": ({"method": "thread"}, ValueError, r"@isolated\(method='thread'\): method is one of"),
    "timeout": ({"timeout": 0}, ValueError, "seconds above 0"),
    "fixtures": ({"fixtures": "copy"}, ValueError, "fixtures is one of own, inherit"),
    "env": ({"env": {"A": 1}}, ValueError, "env is a dict of names and texts"),
    "GPUs twice": (
        {"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "1"}},
        ValueError,
        r"@isolated\(env=\{'CUDA_VISIBLE_DEVICES': ...\}\) on a test that is given GPUs",
    ),
    "both": ({"fixtures": "inherit", "scope": "module"}, ValueError, "cannot inherit"),
}


@pytest.mark.parametrize(("options", "error", "words"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_told_where_it_is_written(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        isolated(**options)


def test_what_cannot_run_elsewhere_is_not_decorated() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    @pytest.fixture
    def fixture() -> int:
        return 1

    things: dict[Any, str] = {numbers: "a generator stops", fixture: "fixture", 3: "not for 3"}
    things["spawn"] = r"not for 'spawn': write isolated\(method='spawn'\)"
    for thing, words in things.items():
        with pytest.raises(TypeError, match=words):
            isolated(thing)


def test_a_function_that_is_called_by_others_gets_no_gpus_and_no_scope() -> None:
    chosen: list[dict[str, Any]] = [{"gpus": 1}, {"scope": "module"}]
    for options in chosen:
        work = isolated(**options)(os.getpid)
        with pytest.raises(ValueError, match="is for tests"):
            work()


@pytest.mark.parametrize(
    ("running", "in_place"),
    [
        ("test_it.py::where (call)", True),
        ("test_it.py::TestIt::where[a::b (setup)-\n] (call)", True),
        ("test_it.py::where (setup)", False),
        ("test_it.py::test_where (call)", False),
        ("where[x]/test_it.py::test_other[::where] (call)", False),
        (None, False),
    ],
)
def test_without_the_plugin_a_test_runs_in_place_and_helpers_do_not(
    monkeypatch: pytest.MonkeyPatch, running: str | None, in_place: bool
) -> None:
    @isolated(method="fork")
    def where() -> int:
        return os.getpid()

    if running is None:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
    else:
        monkeypatch.setenv("PYTEST_CURRENT_TEST", running)
    assert where() != os.getpid()  # the plugin is on
    monkeypatch.delitem(sys.modules, "pytest_cudafork.plugin")
    assert (where() == os.getpid()) is in_place


def test_it_is_a_marker_for_pytest() -> None:
    @isolated(method="spawn", timeout=3)
    @pytest.mark.xfail
    def test_function() -> None: ...

    @isolated
    class TestClass:
        pass

    xfail, mark = test_function.pytestmark  # type: ignore[attr-defined]
    assert (xfail.name, mark.name, mark.kwargs) == (
        "xfail",
        "cuda_isolated",
        {"method": "spawn", "timeout": 3},
    )
    (mark,) = TestClass.pytestmark  # type: ignore[attr-defined]
    assert (mark.name, mark.kwargs) == ("cuda_isolated", {})


def test_pytest_lets_it_run_in_place_below_other_decorators() -> None:
    @isolated(method="spawn")
    def where() -> int:
        return os.getpid()

    @functools.wraps(where)
    def outer() -> int:
        return where()

    class Given:
        def __init__(self, inner_test: Any) -> None:
            self.inner_test = inner_test

    def tried() -> int:
        return where()

    tried.hypothesis = Given(where)  # type: ignore[attr-defined]
    for function in (where, outer, tried):
        with run_here(function):
            assert function() == os.getpid()
    with run_here(None), run_here(len):
        assert where() != os.getpid()
