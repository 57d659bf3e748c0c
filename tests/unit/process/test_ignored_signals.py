"""Tests of the signals that a process ignores whose children may send any."""

from __future__ import annotations

import os
import signal

from pytest_cudafork.process.ignored_signals import SIGNALS, IgnoredSignals


def test_signals_are_ignored_and_mean_afterwards_what_they_meant() -> None:
    came: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    before = [signal.getsignal(each) for each in SIGNALS]
    ignored = IgnoredSignals()
    ignored.end()  # nothing was begun
    try:
        ignored.begin()
        assert all(signal.getsignal(each) is signal.SIG_IGN for each in SIGNALS)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert came == []
        ignored.end()
        assert [signal.getsignal(each) for each in SIGNALS] == before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert came == [signal.SIGUSR1]
    finally:
        ignored.end()
        signal.signal(signal.SIGUSR1, former)
