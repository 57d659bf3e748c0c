"""An error is raised in the main thread while that waits."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pytest_cudafork.check.main_thread import MainThread


@pytest.fixture
def main() -> Iterator[MainThread]:
    """The main thread, between begin and end."""
    made = MainThread()
    made.begin()
    yield made
    made.end()


def handlers() -> dict[int, object]:
    """Return the handlers of all signals."""
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def in_thread(work: object) -> None:
    """Call a function in another thread, and wait for its end."""
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_a_main_thread_that_waits_is_reached(main: MainThread) -> None:
    lock = threading.Lock()
    seen: list[str] = []

    def make(frame: object) -> BaseException | None:
        if seen:
            return None
        seen.append(frame.f_code.co_name)  # type: ignore[attr-defined]
        return ValueError("from outside")

    waits: list[bool] = []

    def wait() -> None:
        waits.append(True)
        lock.acquire()

    def interrupt() -> None:
        while not waits:
            time.sleep(0.001)
        while not seen:  # a wait that just begins when the signal comes goes on
            main.interrupt(make)
            time.sleep(0.01)

    thread = threading.Thread(target=interrupt)
    with lock:
        thread.start()
        with pytest.raises(ValueError, match="from outside"):
            wait()
    thread.join()
    assert seen == ["wait"]


def test_what_makes_no_error_raises_none(main: MainThread) -> None:
    asked = threading.Event()
    in_thread(lambda: main.interrupt(lambda frame: asked.set()))
    assert asked.wait(200)


def test_a_signal_is_taken_that_nobody_uses_and_given_back() -> None:
    before = handlers()
    main = MainThread()
    main.begin()
    inner = MainThread()
    inner.begin()
    taken = [number for number, handler in handlers().items() if handler != before[number]]
    assert len(taken) == 2
    assert min(taken) > signal.SIGRTMIN
    inner.end()
    main.end()
    assert handlers() == before
    main.end()
    main.interrupt(lambda frame: AssertionError("after the end"))


def test_a_handler_that_somebody_else_has_set_meanwhile_stays(main: MainThread) -> None:
    number = main._number
    signal.signal(number, signal.SIG_IGN)
    main.end()
    try:
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, signal.SIG_DFL)


def test_another_thread_can_neither_begin_nor_end(main: MainThread) -> None:
    before = handlers()
    other = MainThread()
    in_thread(other.begin)
    assert other._number == 0
    number = main._number
    in_thread(main.end)
    assert handlers() == before
    signal.signal(number, signal.SIG_DFL)
