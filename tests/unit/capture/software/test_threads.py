"""Operators of other threads are refused or noticed while a capture runs, not missed."""

from __future__ import annotations

import _thread
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.software.places import Places  # noqa: E402
from pytest_cudafork.capture.software.threads import OtherThreads  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402

X = torch.ones(4)


class Worker:
    """A thread that exists before the capture and takes work from a queue."""

    def __init__(self, kind: Any = queue.Queue) -> None:
        self.todo, self.done = kind(), kind()
        self.thread = threading.Thread(target=self._run, name="a worker", daemon=True)
        self.thread.start()
        assert self(lambda: 1) == 1

    def __call__(self, work: Callable[[], Any] | None) -> Any:
        self.todo.put(work)
        return self.done.get(timeout=30) if work else self.thread.join(30)

    def _run(self) -> None:
        while (work := self.todo.get()) is not None:
            self.done.put(work())


@pytest.fixture(params=[queue.Queue, queue.SimpleQueue])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    made = Worker(request.param)
    yield made
    made(None)


def _refused(fn: Callable[[], Any]) -> Any:
    with pytest.raises(CaptureFailedError) as failure:
        SoftwareBackend().capture(fn)
    finding = failure.value.finding
    assert finding.check == "not-captured"
    assert "aten::add" in finding.what
    assert Path(__file__).name in finding.where
    return finding


def test_an_operator_in_a_new_thread_is_refused_there_and_fails_the_capture() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            X + 1
        except CaptureFailedError as error:
            errors.append(error)

    def fn() -> Any:
        thread = threading.Thread(target=work, name="a helper")
        thread.start()
        thread.join()
        return X * 2

    finding = _refused(fn)
    assert "'a helper'" in finding.what
    assert len(errors) == 1


def test_an_operator_in_a_raw_thread_is_refused() -> None:
    def fn() -> Any:
        done = _thread.allocate_lock()
        done.acquire()

        def work() -> None:
            try:
                X + 1
            except CaptureFailedError:
                pass
            finally:
                done.release()

        _thread.start_new_thread(work, ())
        done.acquire()
        return X * 2

    _refused(fn)


def test_a_task_of_an_executor_is_noticed_in_a_thread_that_existed() -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        _refused(lambda: executor.submit(lambda: X + 1).result() * 2)
        assert executor.submit(torch._C._len_torch_dispatch_stack).result() == 0


def test_a_thread_that_existed_and_waits_for_work_is_noticed(worker: Worker) -> None:
    _refused(lambda: worker(lambda: X + 1) * 2)


def test_a_thread_is_as_before_after_a_capture(worker: Worker) -> None:
    for _ in range(2):
        _refused(lambda: worker(lambda: X + 1) * 2)
        assert worker(torch._C._len_torch_dispatch_stack) == 0
        assert worker(sys.getprofile) is None
        assert worker(lambda: X + 1).tolist() == [2] * 4
    assert sys.getprofile() is None


def test_a_thread_that_runs_all_the_time_is_noticed() -> None:
    stop, seen = threading.Event(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.add(X, 1)
            seen.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert seen.wait(30)

        def fn() -> Any:
            for _ in range(2):  # the first one it may have begun before
                seen.clear()
                assert seen.wait(30)
            return X * 2

        _refused(fn)
    finally:
        stop.set()
        thread.join(30)


def test_threads_that_do_no_work_of_torch_do_no_harm(worker: Worker) -> None:
    def fn() -> Any:
        assert worker(lambda: sum(range(100))) == 4950
        assert worker(lambda: X.view(2, 2).shape) == (2, 2)
        return X * 2

    graph = SoftwareBackend().capture(fn)
    graph.replay()
    assert graph.recording.result.tolist() == [2] * 4


def test_a_backward_pass_stays_in_the_thread_of_the_capture(worker: Worker) -> None:
    w = torch.ones(4, requires_grad=True)
    graph = SoftwareBackend().capture(lambda: torch.autograd.grad((w * X).sum(), w))
    graph.replay()
    assert graph.recording.result[0].tolist() == [1] * 4


def test_a_capture_in_another_thread_meanwhile_is_refused(worker: Worker) -> None:
    def other() -> BaseException | None:
        try:
            SoftwareBackend().capture(lambda: X + 1)
        except CaptureFailedError as error:
            return error
        return None

    def fn() -> Any:
        assert "within a capture" in str(worker(other))
        return X * 2

    SoftwareBackend().capture(fn).replay()
    assert worker(other) is None


def test_with_a_profiler_at_work_new_threads_are_still_refused() -> None:
    def fn() -> Any:
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(lambda: X + 1).result()

    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        _refused(fn)
    finally:
        sys.setprofile(before)


def test_host_functions_of_other_threads_are_left_alone(worker: Worker) -> None:
    def fn() -> Any:
        assert worker(lambda: repr([1])) == "[1]"
        assert worker(X.tolist) == [1] * 4
        return X * 2

    SoftwareBackend().capture(fn).replay()


@pytest.fixture
def watch() -> Iterator[tuple[OtherThreads, Any]]:
    """A watch whose calls are made here, and what it notes; no capture is under way."""
    refusals = SimpleNamespace(first=None)
    made = OtherThreads(refusals)  # type: ignore[arg-type]
    yield made, refusals
    made.close()
    made._event("call", None)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_thread_is_watched_while_it_works_and_not_while_it_waits(watch: Any) -> None:
    other, refusals = watch
    for event, called, depth in [
        ("call", None, 1),
        ("return", None, 1),
        ("c_call", time.sleep, 0),
        ("c_return", time.sleep, 1),
        ("c_call", len, 1),
    ]:
        other._event(event, called)
        assert torch._C._len_torch_dispatch_stack() == depth, (event, called)
    X.view(2, 2)
    assert not refusals.first
    assert (X + 1).tolist() == [2] * 4  # it existed before: it is noted, and goes on
    assert "aten::add" in refusals.first.what
    assert Path(__file__).name in refusals.first.where


def test_the_first_operator_is_the_one_that_is_told(watch: Any) -> None:
    other, refusals = watch
    other._event("call", None)
    X + 1
    X * 2
    assert "aten::add" in refusals.first.what


def test_a_mode_of_the_thread_itself_is_left_on_top(watch: Any) -> None:
    other, _ = watch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        other._event("call", None)
        assert torch._C._len_torch_dispatch_stack() == 1


def test_a_young_thread_is_watched_and_refused_from_its_first_call(watch: Any) -> None:
    other, _ = watch
    with other._in_young():
        other._event("c_call", time.sleep)
        assert torch._C._len_torch_dispatch_stack() == 1
        with pytest.raises(CaptureFailedError, match="aten::add"):
            X + 1
    assert torch._C._len_torch_dispatch_stack() == 0
    other.close()
    with other._in_young():
        assert torch._C._len_torch_dispatch_stack() == 0


class OnDevice(Places):
    """Knows of one tensor that it lies on the device, and of one that it lies on the host."""

    host = torch.ones(4)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def lies_on_host(self, tensor: Any) -> bool | None:
        known = {X.data_ptr(): False, self.host.data_ptr(): True}
        return known.get(tensor.data_ptr())


def test_an_older_thread_may_work_with_what_does_not_lie_on_the_device(worker: Worker) -> None:
    with OnDevice():
        captured = SoftwareBackend().capture(
            lambda: X.mul(worker(lambda: (torch.ones(4) + OnDevice.host).sum().item()))
        )
        _refused(lambda: worker(lambda: X + 1))
    captured.replay()
    assert captured.recording.result.tolist() == [8] * 4


def test_a_younger_thread_may_work_with_what_lies_on_the_host_for_sure() -> None:
    def begin(work: Callable[[], Any]) -> None:
        def quietly() -> None:
            with contextlib.suppress(CaptureFailedError):
                work()

        thread = threading.Thread(target=quietly)
        thread.start()
        thread.join(30)

    with OnDevice():
        SoftwareBackend().capture(lambda: begin(lambda: OnDevice.host + 1))
        _refused(lambda: begin(lambda: X + 1))
