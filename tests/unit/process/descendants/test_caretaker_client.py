"""Tests of the pytest process's side of its caretaker, with a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process.descendants import caretaker_client, leftovers, process_state
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from tests.support.isolation import is_gone


@pytest.fixture
def caretaker() -> Iterator[Caretaker]:
    made = Caretaker()
    yield made
    made.close()


def pid_of(caretaker: Caretaker) -> int:
    """Return the process id of one that runs."""
    assert caretaker.pid is not None
    assert process_state.lives(caretaker.pid)
    return caretaker.pid


def test_it_is_started_with_the_first_child_and_ends_with_the_session(
    caretaker: Caretaker,
) -> None:
    assert caretaker.descriptors() == []
    caretaker.over(bytes(16))  # it was never told of
    assert caretaker.descriptors() == []
    caretaker.begun(bytes(16), 1)
    pid = pid_of(caretaker)
    assert pid not in leftovers.descendants(os.getpid())
    caretaker.begun(bytes(16), 2)
    assert pid_of(caretaker) == pid
    caretaker.over(bytes(16))
    caretaker.close()
    assert is_gone(pid)
    assert caretaker.descriptors() == []
    caretaker.begun(bytes(16), 3)  # the session goes on
    assert pid_of(caretaker) != pid


KILLED = """
import os, signal, subprocess, sys, time
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.descendants.caretaker_client import Caretaker

def tell(pid):  # at once: two processes write, and print may write the end of a line by itself
    os.write(1, b"%d\\n" % pid)

caretaker, cookie = Caretaker(), os.urandom(16)
pid = os.fork()
if pid == 0:
    leftovers.mark_process(cookie)
    tell(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    time.sleep(1000)
tell(pid)
caretaker.begun(cookie, pid)
input()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_when_the_process_is_killed_nothing_of_its_children_is_left() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert [process_state.lives(pid) for pid in pids] == [True, True]
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL
        assert [is_gone(pid) for pid in pids] == [True, True]


def test_one_that_was_killed_is_not_missed(caretaker: Caretaker) -> None:
    caretaker.begun(bytes(16), 1)
    pid = pid_of(caretaker)
    os.kill(pid, signal.SIGKILL)
    assert is_gone(pid)
    caretaker.begun(bytes(16), 1)
    assert caretaker.descriptors() == []
    caretaker.over(bytes(16))


def test_one_that_is_stopped_is_told_nothing_more_and_killed_in_the_end(
    caretaker: Caretaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker_client, "_TELL_SECONDS", 0.1)
    caretaker.begun(bytes(16), 1)
    pid = pid_of(caretaker)
    os.kill(pid, signal.SIGSTOP)
    for _ in range(100_000):
        caretaker.over(bytes(16))
        if not caretaker.descriptors():
            break
    assert caretaker.descriptors() == []
    caretaker.close()
    assert is_gone(pid)


def test_where_none_can_be_started_there_is_none(
    caretaker: Caretaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(unpatched.subprocess, "Popen", refuse)
    caretaker.begun(bytes(16), 1)
    assert caretaker.descriptors() == []


def test_a_process_that_was_forked_leaves_it_alone(caretaker: Caretaker) -> None:
    caretaker.begun(bytes(16), 1)
    pid = pid_of(caretaker)
    forked = os.fork()
    if forked == 0:
        caretaker.begun(bytes(16), 2)
        caretaker.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert pid_of(caretaker) == pid
