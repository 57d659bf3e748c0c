"""Tests of what a process that has children makes of signals."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.process.signals import SIGNALS, ChildSignal, Held, IgnoredSignals
from tests.support.signal_at import SignalAt


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


@pytest.fixture
def _ctrl_c_is_pythons() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_pythons")
def test_a_signal_is_held_back_until_something_is_waited_for() -> None:
    held = Held((signal.default_int_handler,))
    with held.kept():
        signal.raise_signal(signal.SIGINT)
        assert held.came
        with pytest.raises(KeyboardInterrupt), held.waiting():
            pytest.fail("it was there before")
        assert held.struck
        with pytest.raises(KeyboardInterrupt):  # the same one, if it was too early
            held.strike()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_ctrl_c_is_pythons")
def test_a_signal_counts_at_once_while_something_is_waited_for_and_a_second_one_always() -> None:
    held = Held((signal.default_int_handler,))
    with held.kept(), pytest.raises(KeyboardInterrupt), held.waiting():
        signal.raise_signal(signal.SIGINT)
    held = Held((signal.default_int_handler,))
    with held.kept():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("_ctrl_c_is_pythons")
def test_other_handlers_and_other_threads_hold_nothing_back() -> None:
    held = Held((signal.default_int_handler,))
    seen: list[Any] = []

    def look() -> None:
        with held.kept():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    with Held().kept():
        seen.append(signal.getsignal(signal.SIGINT))
    assert seen == [signal.default_int_handler] * 2
    held.strike()  # nothing has come
    with pytest.raises(ValueError, match="of its own"), held.waiting():
        raise ValueError("of its own")
    assert not held.struck


class _AlarmError(Exception):
    """What pytest-timeout's handler of SIGALRM does."""


def _alarm(*_: object) -> None:
    raise _AlarmError


@pytest.fixture
def _alarms_raise() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _alarm)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_ctrl_c_is_pythons", "_alarms_raise")
def test_ctrl_c_is_put_back_wherever_the_handler_of_another_signal_raises() -> None:
    for number in itertools.count(1):
        at, held = SignalAt(number, signal.SIGALRM), Held((signal.default_int_handler,))
        with contextlib.suppress(_AlarmError), at, held.kept():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, f"at {number}"
        if not at.sent:
            break
    assert number > 20


@pytest.mark.usefixtures("_alarms_raise")
def test_sigchld_is_put_back_wherever_the_handler_of_another_signal_raises() -> None:
    def handler(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGCHLD, handler)
    try:
        for number in itertools.count(1):
            at = SignalAt(number, signal.SIGALRM)
            with contextlib.suppress(_AlarmError), at, ChildSignal().kept():
                pass
            assert signal.getsignal(signal.SIGCHLD) is handler, f"at {number}"
            if not at.sent:
                break
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert number > 10
