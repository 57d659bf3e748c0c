"""Names of Python's threads that a capture uses to see what other threads do."""

from __future__ import annotations

import ctypes
import sys
import threading
from concurrent.futures import thread as executors

import pytest

from pytest_cudafork.compat import thread_internals
from tests.unit.compat import require


@pytest.mark.parametrize("place", ["START", "BOOTSTRAP", "TASK"])
def test_python_still_has_the_name(place: str) -> None:
    owner, name = getattr(thread_internals, place)
    require("Python", owner, name, "seeing operators of other threads")


def test_python_still_says_which_profiler_new_threads_get() -> None:
    require("Python", threading, "_profile_hook", "leaving profilers of others alone")
    assert thread_internals.profiler_of_new_threads() is None


def test_python_still_sets_a_profiler_for_all_threads() -> None:
    if sys.version_info >= (3, 12):
        require("Python", sys, "_setprofileallthreads", "seeing operators of threads that exist")
        assert thread_internals.profile_all_threads() is not None
    else:
        name = "_PyEval_SetProfile"
        require("Python", ctypes.pythonapi, name, "seeing operators of threads that exist")
        assert thread_internals.profile_all_threads() is None
        assert thread_internals.profile_setter() is not None


def test_a_thread_begins_and_a_task_runs_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for owner, name in (thread_internals.BOOTSTRAP, thread_internals.TASK):
        original = getattr(owner, name)

        def through(*args: object, original: object = original, name: str = name) -> None:
            seen.append(name)
            original(*args)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, through)
    with executors.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(200)
    assert seen == ["_bootstrap_inner", "run"]
