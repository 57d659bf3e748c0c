"""Tests of faulthandler's watchdog across forks.

A process has one, and that of these tests may be in use: some run in processes of their own.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.process.forking import fault_watchdog
from tests.support.interpreters import run

PRELUDE = """
import faulthandler, os, sys, tempfile, time
from pytest_cudafork.process.forking import fault_watchdog
from pytest_cudafork.process.forking.freeze_before_fork import count_threads

def fork():
    pid = fault_watchdog.fork_without(os.fork)
    if pid == 0:
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback_later(60)
        os._exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

def fork_and_say_nothing():
    os.waitpid(fault_watchdog.fork_without(os.fork) or os._exit(0), 0)

class Clock:
    # By it what is left of a watchdog's time is counted: none is lost while others work here.
    now = 0.0
    sleep = staticmethod(time.sleep)
    def monotonic(self):
        return self.now

end = fault_watchdog.note()
clock = fault_watchdog.time = Clock()
"""


def _run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + script]
    return run(command, timeout=60.0, fresh="it ends by a watchdog of its own")


def test_a_child_may_cancel_and_begin_one_and_the_parents_comes_all_the_same() -> None:
    done = _run(
        "faulthandler.dump_traceback_later(600, exit=True); fork(); fork()\n"
        "clock.now = 599.5; fork_and_say_nothing(); time.sleep(30)"
    )
    assert (done.stdout, done.returncode) == ("child 7\nchild 7\n", 1)
    assert done.stderr.startswith("Timeout (0:00:00.")
    assert "in <module>" in done.stderr


def test_one_that_is_over_or_cancelled_is_not_begun_again() -> None:
    done = _run(
        "told = tempfile.TemporaryFile()\n"
        "faulthandler.dump_traceback_later(0.1, file=told)\n"
        "while not os.fstat(told.fileno()).st_size: time.sleep(0.01)  # its thread may be late\n"
        "clock.now = 0.1; fork()\n"
        "faulthandler.dump_traceback_later(600, exit=True)\n"
        "faulthandler.cancel_dump_traceback_later(); clock.now += 599.5; fork()\n"
        "faulthandler.dump_traceback_later(600, exit=True); fault_watchdog.cancel()\n"
        "print(count_threads()); clock.now += 599.5; fork(); time.sleep(1.5)\n"
        "told.seek(0); print(told.read().count(b'Timeout'))"
    )
    assert (done.stdout, done.returncode) == ("child 7\nchild 7\n1\nchild 7\n1\n", 0)
    assert done.stderr == ""


def test_one_that_repeats_goes_on_and_writes_where_it_wrote() -> None:
    done = _run(
        "told = tempfile.TemporaryFile()\n"
        "faulthandler.dump_traceback_later(0.3, True, told); fork()\n"
        "before = os.pread(told.fileno(), 1 << 20, 0).count(b'Timeout')\n"
        "def count(): return os.pread(told.fileno(), 1 << 20, 0).count(b'Timeout')\n"
        "while count() < before + 2: time.sleep(0.01)"
    )
    assert (done.stdout, done.returncode) == ("child 7\n", 0)
    assert done.stderr == ""


def test_a_file_that_was_closed_is_known_by_its_descriptor() -> None:
    done = _run(
        "file = os.fdopen(os.dup(1), 'w', closefd=False)\n"
        "faulthandler.dump_traceback_later(0.5, file=file, exit=True)\n"
        "file.close(); fork(); time.sleep(30)"
    )
    assert done.returncode == 1
    assert "Timeout" in done.stdout


def test_a_fork_that_is_refused_leaves_it_in_the_parent() -> None:
    done = _run(
        "def refuse(): raise RuntimeError('refused')\n"
        "faulthandler.dump_traceback_later(600, exit=True)\n"
        "for clock.now in (1, 599.5):\n"
        "    try: fault_watchdog.fork_without(refuse)\n"
        "    except RuntimeError as error: print(error, flush=True) if clock.now == 1 else None\n"
        "time.sleep(30)"
    )
    assert (done.stdout, done.returncode) == ("refused\n", 1)


def test_what_notes_is_taken_back_and_there_is_one() -> None:
    done = _run(
        "noting = faulthandler.dump_traceback_later\n"
        "print(fault_watchdog.note(), end is None)\n"
        "end(); now = faulthandler.dump_traceback_later\n"
        "print(now is noting, type(now).__name__)\n"
        "fork()"
    )
    assert done.stdout == "None False\nFalse builtin_function_or_method\nchild 7\n"


def test_wrong_arguments_are_told_as_by_the_function_itself() -> None:
    done = _run("faulthandler.dump_traceback_later(-1)")
    assert "ValueError: timeout must be greater than 0" in done.stderr


class _Fake:
    """In place of the functions of faulthandler, as the process has one watchdog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[float, bool, Any, bool]] = []
        self.cancelled = 0
        self.closed: Any = None
        monkeypatch.setattr(faulthandler, "dump_traceback_later", self.begin)
        monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", self.cancel)

    def begin(self, timeout: float, repeat: bool, file: Any, exit: bool) -> None:  # noqa: A002
        if file is self.closed:
            raise ValueError("I/O operation on closed file")
        self.begun.append((timeout, repeat, file, exit))

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Fake]:
    made = _Fake(monkeypatch)
    end = fault_watchdog.note()
    assert end is not None
    assert fault_watchdog.note() is None
    yield made
    end()
    assert faulthandler.dump_traceback_later == made.begin
    assert faulthandler.cancel_dump_traceback_later == made.cancel


def test_the_parent_has_what_is_left_of_it(fake: _Fake) -> None:
    faulthandler.dump_traceback_later(60, file=2, exit=True)
    assert fault_watchdog.fork_without(lambda: 5) == 5
    assert fake.cancelled == 1
    assert fake.begun[0] == (60, False, 2, True)
    (left, *rest) = fake.begun[1]
    assert 0 < left < 60
    assert rest == [False, 2, True]
    assert len(fake.begun) == 2


def test_the_child_has_none(fake: _Fake) -> None:
    faulthandler.dump_traceback_later(60, file=2)
    assert fault_watchdog.fork_without(lambda: 0) == 0
    assert fault_watchdog.fork_without(lambda: 0) == 0
    assert (fake.cancelled, len(fake.begun)) == (1, 1)


def test_nothing_is_done_where_there_is_none(fake: _Fake) -> None:
    assert fault_watchdog.fork_without(lambda: 5) == 5
    faulthandler.dump_traceback_later(60, file=2)
    faulthandler.cancel_dump_traceback_later()
    assert fault_watchdog.fork_without(lambda: 5) == 5
    assert (fake.cancelled, len(fake.begun)) == (1, 1)


def test_one_that_came_is_not_begun_again_and_one_that_repeats_is(fake: _Fake) -> None:
    faulthandler.dump_traceback_later(1e-9, file=2)
    assert fault_watchdog.fork_without(lambda: 5) == 5
    assert len(fake.begun) == 1
    faulthandler.dump_traceback_later(60, True, 2)
    assert fault_watchdog.fork_without(lambda: 5) == 5
    assert fake.begun[1:] == [(60, True, 2, False)] * 2


def test_in_place_of_a_closed_file_its_descriptor_is_taken(fake: _Fake, tmp_path: Path) -> None:
    with open(tmp_path / "stacks", "w", encoding="utf-8") as file:
        fd = file.fileno()
        faulthandler.dump_traceback_later(60, True, file)
    fake.closed = file
    assert fault_watchdog.fork_without(lambda: 5) == 5
    assert fake.begun == [(60, True, file, False), (60, True, fd, False)]


class _LateThread:
    """A watchdog's: it ends when it was told to, and somebody waits for that."""

    def __init__(self) -> None:
        self.told, self._waited_for = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: (self.told.wait(), self._waited_for.wait()))
        self._thread.start()

    def end(self) -> None:
        """Let it end."""
        self.told.set()
        self._waited_for.set()
        self._thread.join()


class _Late:
    """Watchdogs whose threads end one by one, and only while somebody waits, if ``ends``."""

    def __init__(self) -> None:
        self.ends = True
        self._threads: list[_LateThread] = []

    def begin(self, *_arguments: Any) -> None:
        self._threads.append(_LateThread())

    def cancel(self) -> None:
        if self.ends and self._threads:
            self._threads[-1].told.set()

    def sleep(self, seconds: float) -> None:
        """Let one end, instead of waiting until it does."""
        for thread in self._threads:
            if thread.told.is_set():
                self._threads.remove(thread)
                thread.end()
                return
        time.sleep(seconds)

    def end_all(self) -> None:
        """Leave none."""
        for thread in self._threads:
            thread.end()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Late]:
    made = _Late()
    monkeypatch.setattr(faulthandler, "dump_traceback_later", made.begin)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", made.cancel)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=made.sleep)
    monkeypatch.setattr(fault_watchdog, "time", clock)
    monkeypatch.setattr(fault_watchdog, "_THREAD_SECONDS", 600.0)
    end = fault_watchdog.note()
    assert end is not None
    yield made
    made.end_all()
    end()


def _new_threads(before: set[str]) -> int:
    """Count as ``count_threads`` does, less those of earlier tests, which may end meanwhile."""
    return len(_threads() - before)


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_the_thread_of_one_that_is_cancelled_is_waited_for(late: _Late) -> None:
    before = _threads()
    faulthandler.dump_traceback_later(60, file=2)
    assert _new_threads(before) == 1
    fault_watchdog.cancel()
    assert _new_threads(before) == 0


def test_and_those_of_earlier_ones_that_have_not_ended_yet(late: _Late) -> None:
    before = _threads()
    for _ in range(2):
        faulthandler.dump_traceback_later(60, file=2)
        faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(60, file=2)
    assert _new_threads(before) == 3
    fault_watchdog.cancel()
    assert _new_threads(before) == 0


def test_a_thread_that_does_not_end_is_waited_for_once(
    late: _Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_watchdog, "_THREAD_SECONDS", 0.05)
    late.ends = False
    faulthandler.dump_traceback_later(60, file=2)
    fault_watchdog.cancel()
    began = time.monotonic()
    monkeypatch.setattr(fault_watchdog, "_THREAD_SECONDS", 30.0)
    fault_watchdog.cancel()
    assert time.monotonic() - began < 15
