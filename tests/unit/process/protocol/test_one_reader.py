"""One of several threads reads for all."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_cudafork.process.protocol.one_reader import OneReader
from tests.support.signs import wait_until

FOREVER = 300.0


class Connection:
    """Messages that threads wait for, each by its name."""

    def __init__(self) -> None:
        self.reader = OneReader()
        self.sent: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.come: set[str] = set()
        self.reading = 0

    def read(self) -> None:
        self.reading += 1
        assert self.reading == 1, "two threads read at once"
        try:
            message = self.sent.get(timeout=FOREVER)
            if message == "trouble":
                raise EOFError(message)
            self.come.add(message)
        finally:
            self.reading -= 1

    def wait(self, name: str, seconds: float = FOREVER) -> bool:
        return self.reader.wait(lambda: name in self.come, self.read, time.monotonic() + seconds)


def test_what_has_come_is_not_waited_for() -> None:
    connection = Connection()
    connection.come.add("a")
    assert connection.wait("a", seconds=0.0)


def test_each_thread_gets_what_it_waits_for_whichever_reads() -> None:
    connection = Connection()
    names = [str(number) for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        waiting = threads.map(connection.wait, names)
        for name in reversed(names):
            connection.sent.put(name)
        assert all(waiting)


def test_a_thread_that_waits_for_the_reader_gives_up_in_time() -> None:
    connection = Connection()
    with ThreadPoolExecutor(1) as threads:
        reads = threads.submit(connection.wait, "a")
        wait_until(lambda: connection.reading == 1)
        assert not connection.wait("b", seconds=0.01)
        connection.sent.put("a")
        assert reads.result()


def test_where_reading_fails_another_thread_goes_on() -> None:
    connection = Connection()
    with ThreadPoolExecutor(1) as threads:
        fails = threads.submit(connection.wait, "a")
        wait_until(lambda: connection.reading == 1)
        goes_on = threading.Thread(target=connection.wait, args=("b",))
        goes_on.start()
        connection.sent.put("trouble")
        connection.sent.put("b")
        with pytest.raises(EOFError):
            fails.result()
        goes_on.join(FOREVER)
        assert not goes_on.is_alive()
