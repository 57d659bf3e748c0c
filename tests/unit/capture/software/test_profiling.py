"""A function runs in threads that exist already, at their next Python call."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from pytest_cudafork.capture.software.profiling import in_other_threads


class Worker:
    """A thread that waits, calls a function when told to, and says so."""

    def __init__(self) -> None:
        self.go, self.done = threading.Event(), threading.Event()
        self.ends = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.ends:
            self.go.wait(30)
            self.go.clear()
            sum([1, 2])
            self.done.set()

    def work(self) -> None:
        self.done.clear()
        self.go.set()
        assert self.done.wait(30)


@pytest.fixture
def worker() -> Any:
    made = Worker()
    made.work()
    yield made
    made.ends = True
    made.go.set()
    made.thread.join(30)


@pytest.fixture(autouse=True)
def no_profiler() -> Any:
    assert sys.getprofile() is None


def test_a_thread_that_exists_runs_it_and_this_one_does_not(worker: Worker) -> None:
    seen: list[tuple[int | None, str, str]] = []

    def hook(event: str, called: Any) -> None:
        seen.append((threading.get_ident(), event, getattr(called, "__name__", "")))

    with in_other_threads(hook) as done:
        assert done
        worker.work()
        sum([1])
    count = len(seen)
    worker.work()
    assert len(seen) == count, "it is over"
    threads = {thread for thread, _, _ in seen}
    assert threads == {worker.thread.ident}
    assert "c_call" in {event for _, event, _ in seen}
    assert "sum" in {name for _, _, name in seen}


def test_a_profiler_at_work_is_left_alone(worker: Worker) -> None:
    def profiler(frame: Any, event: str, argument: Any) -> None: ...

    sys.setprofile(profiler)
    try:
        with in_other_threads(lambda event, called: None) as done:
            assert not done
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_without_the_function_of_c_it_is_not_done(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "pytest_cudafork.capture.software.profiling"
    monkeypatch.setattr(f"{module}.profile_all_threads", lambda: None)
    monkeypatch.setattr(f"{module}.profile_setter", lambda: None)
    with in_other_threads(lambda event, called: None) as done:
        assert not done


def test_where_python_sets_it_for_all_threads_it_is_asked_to(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    module = "pytest_cudafork.capture.software.profiling"
    monkeypatch.setattr(f"{module}.profile_all_threads", lambda: given.append)
    seen: list[str] = []
    with in_other_threads(lambda event, called: seen.append(event)) as done:
        assert done
        given[0](None, "call", None)
        thread = threading.Thread(target=given[0], args=(None, "c_call", None))
        thread.start()
        thread.join()
    assert seen == ["c_call"], "not in this thread"
    assert given[1] is None
