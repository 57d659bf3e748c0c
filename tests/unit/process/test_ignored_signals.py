"""Tests of signals that are ignored for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pytest_cudafork.process.ignored_signals import SIGNALS, IgnoredSignals


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler or signal.SIG_DFL)


def test_signals_mean_nothing_from_begin_to_end_and_then_what_they_meant() -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    before = {each: signal.getsignal(each) for each in SIGNALS}
    ignored = IgnoredSignals()
    ignored.begin()
    for each in SIGNALS:
        os.kill(os.getpid(), each)
    assert came == []
    ignored.end()
    assert {each: signal.getsignal(each) for each in SIGNALS} == before
    os.kill(os.getpid(), signal.SIGUSR1)
    assert came == [signal.SIGUSR1]


def test_a_forked_child_inherits_it() -> None:
    ignored = IgnoredSignals()
    ignored.begin()
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)
    ignored.end()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_an_end_without_a_begin_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    IgnoredSignals().end()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_that_python_does_not_know_becomes_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[object] = []

    def set_handler(number: int, handler: object) -> object:
        given.append(handler)
        return None  # what signal.signal says of a handler from C

    ignored = IgnoredSignals()
    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", set_handler)
        ignored.begin()
        ignored.end()
    assert given == [signal.SIG_IGN] * len(SIGNALS) + [signal.SIG_DFL] * len(SIGNALS)
