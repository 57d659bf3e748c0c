"""Tests of what the kernel says of a process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from pytest_cudafork.process.descendants import process_state
from tests.support.descriptors import descriptors_left
from tests.support.signs import wait_until


def wait_for(pid: int, states: str) -> None:
    """Wait until a process is in one of these states."""
    until = time.monotonic() + 300
    while process_state.state_of(pid) not in tuple(states):
        assert time.monotonic() < until, process_state.state_of(pid)
        time.sleep(0.005)


def test_a_stopped_process_lives_and_can_be_woken() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        wait_for(child.pid, "T")
        assert process_state.lives(child.pid)
        process_state.wake(child.pid)
        wait_for(child.pid, "SR")
        process_state.wake(child.pid)  # it is awake
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_state.state_of(child.pid) == "Z"
        assert not process_state.lives(child.pid)
    assert process_state.state_of(child.pid) == ""
    assert not process_state.lives(child.pid)


def test_who_has_no_descriptor_left_still_knows_whether_a_process_lives() -> None:
    with subprocess.Popen(["sleep", "100"]) as child, descriptors_left(0):
        assert process_state.state_of(child.pid) == ""
        assert process_state.lives(child.pid)
        assert process_state.lives(os.getppid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process_state.lives(child.pid)
        child.wait()
        assert not process_state.lives(child.pid)


def test_what_it_runs_and_since_when_is_known_while_it_is_there() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen(["sleep", "100"]) as child:
        # a process has no command line for a moment when it begins a program
        wait_until(lambda: process_state.program_of(child.pid) == "sleep 100")
        since = process_state.started_at(child.pid)
        child.kill()
    assert before - 1 < since < time.clock_gettime(time.CLOCK_BOOTTIME) + 1
    assert process_state.program_of(child.pid) == ""
    assert process_state.started_at(child.pid) == 0


def test_one_that_has_ended_has_no_memory() -> None:
    assert process_state.has_memory(os.getpid())
    with subprocess.Popen(["sleep", "100"]) as child:
        assert process_state.has_memory(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process_state.has_memory(child.pid)
    assert not process_state.has_memory(child.pid)


def test_a_name_with_parentheses_is_no_state() -> None:
    code = "open('/proc/self/comm', 'w').write(') Z 1 (')\nprint(1, flush=True)\ninput()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        wait_for(child.pid, "SR")
        child.kill()


def test_a_command_line_sends_no_control_sequence_to_the_terminal() -> None:
    name = "\x1b]0;owned\x07\x1b[2J\rok\n"
    with subprocess.Popen([name, "100"], executable=shutil.which("sleep")) as child:
        wait_until(lambda: process_state.program_of(child.pid).endswith(" 100"))
        shown = process_state.program_of(child.pid)
        child.kill()
    assert shown == "?]0;owned??[2J?ok? 100"


def test_the_status_of_a_process_and_of_a_thread() -> None:
    pid = os.getpid()
    told: list[str] = []
    thread = threading.Thread(
        target=lambda: told.append(process_state.status_of(threading.get_native_id(), "Tgid"))
    )
    thread.start()
    thread.join()
    assert told == [str(pid)]
    assert process_state.status_of(pid, "no such name") == ""
    assert process_state.status_of(1 << 22, "Tgid") == ""
