"""Ctrl-C does not cut a piece of work in two, and is not lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading

import pytest

from sample_engine.process.interrupts import interrupts_deferred
from tests.support.signal_at import SignalAt


def interrupt() -> None:
    """What a terminal sends."""
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_comes_after_the_work() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _work(done, interrupts=1)
    assert done == ["first half", "second half"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_gets_through_to_work_that_hangs() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _work(done, interrupts=2)
    assert done == ["first half"]


def test_work_without_an_interrupt_is_left_alone() -> None:
    done: list[str] = []
    _work(done, interrupts=0)
    assert done == ["first half", "second half"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_work_is_raised_and_the_handler_put_back() -> None:
    with pytest.raises(ZeroDivisionError), interrupts_deferred():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_there_is_nothing_to_hold_back() -> None:
    done: list[str] = []
    thread = threading.Thread(target=_work, args=(done, 0))
    thread.start()
    thread.join()
    assert done == ["first half", "second half"]


def test_work_within_work_is_held_together_and_the_second_interrupt_still_gets_through() -> None:
    done: list[str] = []

    def outer(interrupts: int) -> None:
        with interrupts_deferred():
            _work(done, interrupts)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        outer(1)
    assert done == ["first half", "second half", "the rest"]
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        outer(2)
    assert done == ["first half"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _AlarmError(Exception):
    """What pytest-timeout's handler of SIGALRM does."""


def _alarm(*_: object) -> None:
    raise _AlarmError


def test_the_handler_of_another_signal_may_raise_anywhere_and_no_interrupt_is_lost() -> None:
    before = signal.signal(signal.SIGALRM, _alarm)
    try:
        for number in itertools.count(1):
            at = SignalAt(number, signal.SIGALRM)
            with contextlib.suppress(_AlarmError), at:
                _work([], interrupts=0)
            with pytest.raises(KeyboardInterrupt):
                interrupt()
            done: list[str] = []
            with pytest.raises(KeyboardInterrupt):
                _work(done, interrupts=1)
            assert done == ["first half", "second half"], f"at {number}"
            if not at.sent:
                break
    finally:
        signal.signal(signal.SIGALRM, before)
    assert number > 20
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    done: list[str] = []
    try:
        _work(done, interrupts=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["first half", "second half"]


def _work(done: list[str], interrupts: int) -> None:
    with interrupts_deferred():
        done.append("first half")
        for _ in range(interrupts):
            interrupt()
        done.append("second half")
