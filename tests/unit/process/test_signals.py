"""Tests of what a process that has children makes of signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.process.signals import SIGNALS, ChildSignal, IgnoredSignals


def test_signals_are_ignored_and_mean_afterwards_what_they_meant() -> None:
    came: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    before = [signal.getsignal(each) for each in SIGNALS]
    ignored = IgnoredSignals()
    ignored.end()  # nothing was begun
    try:
        ignored.begin()
        assert all(signal.getsignal(each) is signal.SIG_IGN for each in SIGNALS)
        signal.raise_signal(signal.SIGUSR1)
        assert came == []
        ignored.end()
        assert [signal.getsignal(each) for each in SIGNALS] == before
        signal.raise_signal(signal.SIGUSR1)
        assert came == [signal.SIGUSR1]
    finally:
        ignored.end()
        signal.signal(signal.SIGUSR1, former)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    former = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, former)


def exit_code_of_a_child() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_keeps_its_exit_status_where_the_signal_is_ignored() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with ChildSignal().kept():
        assert exit_code_of_a_child() == 3
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def test_a_handler_is_called_when_its_time_has_come() -> None:
    called: list[int] = []

    def handler(number: int, frame: Any) -> None:
        called.append(number)

    signal.signal(signal.SIGCHLD, handler)
    with ChildSignal().kept():
        called.clear()  # a child of another test may have ended just before
        assert exit_code_of_a_child() == 3
        assert not called
    assert set(called) == {signal.SIGCHLD}
    assert signal.getsignal(signal.SIGCHLD) is handler


def test_the_default_stays_as_it_is() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    taken = ChildSignal()
    with taken.kept():
        taken.end()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


def test_another_thread_leaves_it_alone() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    seen: list[Any] = []

    def look() -> None:
        with ChildSignal().kept():
            seen.append(signal.getsignal(signal.SIGCHLD))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_IGN]


def test_a_child_gets_it_back() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    taken = ChildSignal()
    with taken.kept():
        pid = os.fork()
        if pid == 0:
            taken.end()
            os._exit(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
