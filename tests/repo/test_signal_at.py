"""A signal at a chosen place comes in the code under test, and not in what the collector calls."""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.signal_at import SignalAt


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """What the garbage collector has told; it runs as often as it can."""
    told: list[str] = []

    def tell(phase: str, info: Any) -> None:
        del info
        told.append(phase)

    before = gc.get_threshold()
    gc.callbacks.append(tell)
    gc.set_threshold(1)
    yield told
    gc.set_threshold(*before)
    gc.callbacks.remove(tell)


def work() -> list[list[int]]:
    """Make what the collector looks at."""
    return [list(range(number)) for number in range(20)]


def test_the_collector_waits_and_goes_on_afterwards(collections: list[str]) -> None:
    for number in itertools.count(1):
        at = SignalAt(number, signal.SIGINT)
        try:
            with at:
                collections.clear()
                work()
                assert not collections
        except KeyboardInterrupt:
            pass
        assert gc.isenabled(), f"at {number}"
        if not at.sent:
            break
    assert number > 1
    work()
    assert collections


def test_a_collector_that_did_not_run_is_left_alone() -> None:
    gc.disable()
    try:
        with SignalAt(1000, signal.SIGINT):
            work()
        assert not gc.isenabled()
    finally:
        gc.enable()
