"""One call at a time talks to the core; calls that wait for outputs read for each other."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace

import pytest

from sample_engine.frontend import turns as module
from sample_engine.frontend.turns import Turns

HANG_SECONDS = 120.0


def test_a_call_has_the_core_for_itself_and_gives_it_back_when_it_fails() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError):
        turns.take(lambda: 1 / 0)
    assert turns.take(turns.lock.locked)
    assert not turns.lock.locked()


def test_what_another_call_has_read_is_there_while_that_one_reads_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, come, end = Turns(), set[str](), threading.Event()
    reads: list[None] = []
    waits, returned = threading.Event(), threading.Event()

    class Noted(queue.SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            waits.set()
            super().get(block, timeout)

    monkeypatch.setattr(module, "queue", SimpleNamespace(SimpleQueue=Noted, Empty=queue.Empty))

    def read() -> None:
        reads.append(None)
        if len(reads) == 1:
            assert waits.wait(HANG_SECONDS)
            come.add("other")
        else:  # the core has nothing to say for long
            assert end.wait(HANG_SECONDS)
            come.add("reader")

    def wait_for_other() -> None:
        turns.wait(lambda: "other" in come, lambda: pytest.fail("the other one reads"))
        returned.set()

    def wait_for_reader() -> None:
        turns.wait(lambda: "reader" in come, lambda: turns.take(read))

    reader = threading.Thread(target=wait_for_reader)
    reader.start()
    while not reads:
        time.sleep(0.001)
    other = threading.Thread(target=wait_for_other)
    other.start()
    in_time = returned.wait(HANG_SECONDS / 2)
    end.set()
    for thread in (reader, other):
        thread.join(HANG_SECONDS)
    assert in_time
    assert come == {"reader", "other"}


def test_a_call_that_could_not_say_that_it_is_done_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_OTHER_SECONDS", 0.01)
    turns, come = Turns(), set[str]()
    turns._asking.add(object())  # as Ctrl-C may leave it, at the end of a call
    turns.wait(lambda: "output" in come, lambda: turns.take(lambda: come.add("output")))
    assert come == {"output"}
    assert turns._asking == set() == turns._waiting
