"""Refusals in threads: which of them is lost, what is written, and who is interrupted."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import caught, thread_refusals
from pytest_cudafork.check.refusal import Refusals, RefusedFork
from pytest_cudafork.check.thread_refusals import PastCapture
from pytest_cudafork.errors import CudaForkError

STORY = "fork refused at a.py:1: CUDA was initialized at b.py:2 (class body)\n\nand so on"


class Written:
    """What is written past the capture."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        """Keep it."""
        self.text += text

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """Stand in for what was descriptor 2, and wait for less long."""
    made = Written()
    monkeypatch.setattr(thread_refusals, "PastCapture", lambda: made)
    for name in ("_LOOK", "GRACE", "STUCK"):
        monkeypatch.setattr(thread_refusals, name, 0.01)
    monkeypatch.setattr(thread_refusals, "_AGAIN", 600.0)  # what was told once is not told later
    return made


@pytest.fixture
def refusals(written: Written) -> Iterator[Refusals]:
    """A process in which no fork was refused."""
    notes: Any = SimpleNamespace(note_caught=lambda fork, **place: None)
    made = Refusals(notes)
    made.threads.begin()
    yield made
    made.threads._lost.clear()
    made.threads.end()


def start(work: Callable[[], object], name: str = "worker") -> threading.Thread:
    """Start a thread, whose error is shown nowhere."""

    def run() -> None:
        with contextlib.suppress(SystemExit):
            work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def wait_for_ever(work: Callable[[], object]) -> None:
    """Start a thread, and wait for what it does not give."""
    start(work)
    queue.Queue[int]().get()


@pytest.fixture
def leave_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give the main thread time from now on; on a busy machine it takes some to start a thread."""
    return lambda: monkeypatch.setattr(thread_refusals, "GRACE", 600.0)


def refuse(refusals: Refusals) -> None:
    """Refuse a fork."""
    raise refusals.refuse(STORY, "1")


def watchers() -> list[threading.Thread]:
    """Return the threads that look after refusals."""
    return [each for each in threading.enumerate() if each.name == "pytest-cudafork: refused fork"]


def settled() -> None:
    """Wait until no refusal is looked after."""
    for thread in watchers():
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_a_thread_that_died_is_interrupted(
    refusals: Refusals,
    written: Written,
    leave_alone: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_refusals, "GRACE", 1.0)  # so long may the error be on its way
    with pytest.raises(CudaForkError) as raised:
        wait_for_ever(lambda: refuse(refusals))
    assert str(raised.value).startswith(STORY)
    assert "refused in thread 'worker', which ended by it" in str(raised.value)
    refusals.settle()  # the phase is over
    settled()
    assert written.text == f"\nIn thread 'worker', which ended by it:\n{STORY}\n"
    leave_alone()
    start(lambda: refuse(refusals)).join()
    refusals.settle()
    settled()
    assert written.text.count("and so on") == 1
    assert written.text.endswith("(class body)\n")


def test_a_thread_that_swallows_it_and_goes_on_counts_as_lost(
    refusals: Refusals, written: Written
) -> None:
    over = threading.Event()

    def work() -> None:
        try:
            refuse(refusals)
        except Exception:
            over.wait(600)

    with pytest.raises(CudaForkError, match="which swallowed its error"):
        wait_for_ever(work)
    over.set()
    refusals.settle()
    settled()
    assert "which swallowed its error:" in written.text


def test_nobody_is_interrupted_where_the_thread_expects_it(
    refusals: Refusals, written: Written
) -> None:
    def work() -> None:
        with contextlib.suppress(CudaForkError):
            refuse(refusals)

    start(work).join()
    settled()
    assert not written.text


@pytest.mark.slow
def test_an_error_that_a_future_holds_is_not_lost_before_the_future_is(
    refusals: Refusals, written: Written, leave_alone: Callable[[], None]
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(refuse, refusals)
        with contextlib.suppress(CudaForkError):
            future.result()
    settled()
    assert not written.text
    leave_alone()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(refuse, refusals)
    gc.collect()
    refusals.settle()
    settled()
    assert "which swallowed its error:" in written.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_could_not_be_looked_at_when_it_was_dropped_is_looked_at_later(
    refusals: Refusals, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped, over = threading.Event(), threading.Event()
    monkeypatch.setattr(caught, "may_look", dropped.is_set)

    def attempt() -> None:
        with contextlib.suppress(Exception):
            refuse(refusals)

    def work() -> None:
        attempt()
        dropped.set()
        over.wait(600)

    with pytest.raises(CudaForkError, match="which swallowed its error"):
        wait_for_ever(work)
    over.set()
    refusals.settle()
    settled()


def test_a_refusal_in_the_main_thread_needs_no_care(refusals: Refusals) -> None:
    before = watchers()  # of a test before this one; they may end now
    with contextlib.suppress(CudaForkError):
        refuse(refusals)
    assert not set(watchers()) - set(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_phase_that_is_over_before_anybody_looks_is_not_interrupted(
    refusals: Refusals, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, begin = refusals.threads._watch, threading.Event()

    def watch_later(*args: Any) -> None:
        begin.wait(600)
        watch(*args)

    monkeypatch.setattr(refusals.threads, "_watch", watch_later)
    start(lambda: refuse(refusals)).join()
    refusals.settle()
    begin.set()
    settled()
    assert "which ended by it:" in written.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_phase_that_ends_while_the_signal_is_on_its_way_is_not_interrupted(
    refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt, sent = refusals.threads._main.interrupt, threading.Event()

    def interrupt_late(make: Any) -> None:
        refusals.settle()
        interrupt(make)
        sent.set()

    monkeypatch.setattr(refusals.threads._main, "interrupt", interrupt_late)
    start(lambda: refuse(refusals))
    assert sent.wait(120)
    settled()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_later_for_a_library_that_lost_its_thread_is_interrupted(
    refusals: Refusals, written: Written, leave_alone: Callable[[], None]
) -> None:
    leave_alone()
    # The thread is that of a library: its function stands in the standard library's queue.
    library: dict[str, Any] = {}
    source = "def run(call): call()\ndef wait(call): call()\n"
    exec(compile(source, queue.__file__, "exec"), library)
    thread = threading.Thread(target=library["run"], args=(lambda: refuse(refusals),))
    thread.start()
    thread.join()
    while not written.text:
        time.sleep(0.001)
    refusals.settle()  # the phase in which it was refused is over
    with pytest.raises(CudaForkError, match="What waits for that thread"):
        library["wait"](threading.Event().wait)
    refusals.threads.end()  # the session is over, and the process is not
    with pytest.raises(CudaForkError) as raised:
        library["wait"](threading.Event().wait)
    assert "and so on" not in str(raised.value)
    refusals.threads._lost.clear()
    refusals.threads.end()
    settled()
    assert not isinstance(raised.value, RefusedFork)


def test_what_was_descriptor_2_is_written_to_past_any_capture() -> None:
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as capture:
        kept = os.dup(2)
        try:
            os.dup2(log.fileno(), 2)
            terminal = PastCapture()
            os.dup2(capture.fileno(), 2)
            terminal.write("at once\n")
            os.close(terminal._fd)  # as a test may do
            terminal.write("then here\n")
            os.close(2)
            terminal.write("lost\n")
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        terminal.close()
        log.seek(0)
        capture.seek(0)
        assert (log.read(), capture.read()) == (b"at once\n", b"then here\n")


def test_a_process_without_descriptor_2_writes_nowhere() -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        terminal = PastCapture()
        terminal.write("lost")
        terminal.close()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_where_threads_are_greenlets_nothing_is_looked_after(
    refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchers: list[str] = []

    def make(**more: Any) -> Any:
        return SimpleNamespace(start=lambda: watchers.append(more["name"]))

    copy = SimpleNamespace(**vars(vars(thread_refusals)["threading"]))
    copy.Thread = make

    def refused() -> None:
        refusals.refuse(STORY, "1-1")

    monkeypatch.setattr(thread_refusals, "threading", copy)
    start(refused).join()
    assert len(watchers) == 1
    copy.get_ident = lambda: 7  # what is in sys.modules is another one, as with gevent
    start(refused).join()
    assert len(watchers) == 1
