"""Tests of SIGCHLD in a process that waits for its children."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.process.child_signal import ChildSignal


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
        assert exit_code_of_a_child() == 3
        assert not called
    assert called == [signal.SIGCHLD]
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
