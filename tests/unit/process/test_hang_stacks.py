"""Tests of the parts that deal with dying and hanging children, each by itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.compat import unpatched
from pytest_cudafork.isolate.session import failure, report_checks
from pytest_cudafork.process import (
    hang_stacks,
    launch,
    native_stacks,
    supervision,
    termination,
)
from pytest_cudafork.process.descendants import leftovers, process_state
from pytest_cudafork.process.protocol import frames, messages
from tests.support.child_endings import ending
from tests.support.signs import wait_until


def report(when: str, outcome: str = "passed") -> pytest.TestReport:
    """Return a report of a phase."""
    return pytest.TestReport(
        nodeid="t.py::test",
        location=("t.py", 1, "test"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=("t.py", 1, "why") if outcome == "skipped" else None,
        when=when,  # type: ignore[arg-type]
    )


def reports(text: str) -> list[pytest.TestReport]:
    """Return reports from words such as ``setup call:failed teardown``."""
    parts = [word.partition(":") for word in text.split()]
    return [report(when, outcome or "passed") for when, _, outcome in parts]


@pytest.mark.parametrize(
    ("told", "phase", "missing"),
    [
        ("", "setup", "setup"),
        ("setup", "call", "call"),
        ("setup:failed", "teardown", "teardown"),
        ("setup:skipped teardown", "teardown", None),
        ("setup call", "teardown", "teardown"),
        ("setup call teardown", "teardown", None),
        ("setup teardown", "teardown", "call"),
        ("teardown", "setup", "setup"),
        ("teardown setup call", "teardown", "teardown"),
        # run again by pytest-rerunfailures, which reports a run that does not count as "rerun"
        ("setup call:rerun", "setup", "setup"),
        ("setup call:rerun setup", "call", "call"),
        ("setup call:rerun setup call teardown", "teardown", None),
        ("setup call teardown setup", "call", "call"),
        # an outcome that a plugin or a conftest has given it
        ("setup call:great teardown", "teardown", None),
        ("setup call:great call", "teardown", "teardown"),
        ("setup call:great", "call", "teardown"),
    ],
)
def test_the_phase_of_a_test_and_what_it_has_not_told(
    told: str, phase: str, missing: str | None
) -> None:
    assert report_checks.next_phase(reports(told)) == phase
    assert report_checks.missing_phase(reports(told)) == missing


def test_with_setup_only_no_call_is_missing() -> None:
    assert report_checks.missing_phase(reports("setup teardown"), calls=False) is None


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.lists(st.text() | st.integers(), max_size=3)
    | st.tuples(st.text(), st.integers(), st.text())
    | st.lists(st.tuples(st.text(), st.text()), max_size=2)
    | st.dictionaries(st.text(), st.integers(), max_size=2)
)  # fmt: skip
FIELDS = ("when", "outcome", "location", "keywords", "duration", "sections", "user_properties")


@given(st.dictionaries(st.sampled_from([*FIELDS, "longrepr", "wasxfail"]), ANYTHING, max_size=3))
def test_a_report_is_refused_or_can_be_shown(changes: dict[str, Any]) -> None:
    made = report("call")
    vars(made).update(changes)
    try:
        report_checks.check_report(made)
    except TypeError:
        return
    assert isinstance(made.longreprtext, str)
    assert isinstance(made.caplog + made.capstdout + made.capstderr, str)
    assert made.head_line in (made.location[2], None)
    assert f"{made.duration:.2f}"
    if made.skipped and not hasattr(made, "wasxfail"):
        reason: Any = made.longrepr[2]  # type: ignore[index]
        assert isinstance(reason, str)


@given(st.sampled_from(sorted(messages.KINDS)), st.dictionaries(st.text(), ANYTHING, max_size=3))
def test_a_message_is_refused_or_has_all_its_fields(kind: str, fields: dict[str, Any]) -> None:
    try:
        message = messages.decode({**fields, "kind": kind})
    except frames.FrameError:
        return
    needed = message.types.keys() - message.defaults
    assert needed - {"descriptors"} <= fields.keys()


def test_a_process_that_does_not_even_die_of_sigkill_is_told_and_left() -> None:
    error = failure.error_of(
        ending(timed_out=True, finished=False, stuck=True, state="thread 1 ('x'): in the kernel"),
        "call",
        3.0,
    )
    assert "hangs in the kernel, and is left to it" in str(error)
    assert "thread 1 ('x')" in str(error)


def test_a_child_killed_for_its_garbage_is_not_said_to_be_out_of_memory() -> None:
    error = failure.error_of(ending(exitcode=-9, malformed="found junk"), "call", None)
    assert "was killed for it" in str(error)
    assert "memory" not in str(error)
    error = failure.error_of(ending(exitcode=-11, malformed="found junk"), "call", None)
    assert "SIGSEGV" in str(error)


SLEEP = "import faulthandler, time; faulthandler.enable(); print('up', flush=True); time.sleep(100)"


def start(code: str) -> subprocess.Popen[str]:
    """Start a process that says when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n",
        "import signal; signal.signal(signal.SIGABRT, signal.SIG_IGN)\n",
        "pass\n",
    ],
    ids=["plain", "blocked", "ignored", "stopped"],
)
def test_a_process_with_faulthandler_writes_its_stacks(
    first: str, request: pytest.FixtureRequest
) -> None:
    code = first + SLEEP
    if "IGN" in first:
        code = code.replace("enable()", "enable(); signal.signal(signal.SIGABRT, signal.SIG_IGN)")
    with start(code) as process:
        try:
            if request.node.callspec.id == "stopped":  # as a debugger or a shell may have done it
                os.kill(process.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            assert hang_stacks.ask(process.pid)
            _, written = process.communicate(timeout=300)
        finally:
            process.kill()
    assert 'File "<string>"' in written
    assert process.returncode in (-signal.SIGABRT, -signal.SIGBUS)


def test_a_process_without_faulthandler_is_left_alone() -> None:
    with start("import time; print('up', flush=True); time.sleep(100)") as process:
        try:
            assert not hang_stacks.ask(process.pid)
            assert process.poll() is None
            assert "time.sleep(100)" in process_state.program_of(process.pid)
            # it may not have got to it
            wait_until(lambda: "sleeping" in native_stacks.thread_states(process.pid))
        finally:
            process.kill()


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not hang_stacks.ask(process.pid)
    assert process_state.program_of(process.pid) == ""
    assert native_stacks.thread_states(process.pid) == ""


def test_a_py_spy_that_hangs_is_ended_in_time(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr(native_stacks, "py_spy", lambda: str(program))
    assert native_stacks.native_stacks(os.getpid(), 0.2) == "(py-spy gave no answer within 0.2 s)"


def test_sigterm_means_what_it_did_when_the_wait_is_over() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        came = pytest.raises(pytest.exit.Exception, match=r"SIGTERM came while t\.py::test")
        with came, termination.sigterm_ends_session("t.py::test"):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with termination.sigterm_ends_session("t.py::test"):
            termination.forget()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with termination.sigterm_ends_session("t.py::test"):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            termination.forget()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_no_signal_is_handled() -> None:
    done = []

    def work() -> None:
        with termination.sigterm_ends_session("t.py::test"):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_child_that_cannot_be_killed_does_not_stop_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # stands for a process that hangs in a driver, which no test can make
    monkeypatch.setattr(supervision, "_KILL_SECONDS", 0.2)
    monkeypatch.setattr(leftovers, "_KILL_SECONDS", 0.2)
    ours, theirs = socket.socketpair()
    cookie = frames.new_cookie()
    with theirs, subprocess.Popen(["sleep", "100"]) as process:
        wait_until(lambda: process_state.program_of(process.pid))  # it has none while it begins
        running = launch.Running(
            process.pid,
            launch.pidfd(process.pid),
            ours,
            os.memfd_create("stacks"),
            lambda: pytest.fail("it must not be waited for"),
            cookie,
        )
        with monkeypatch.context() as patch:
            patch.setattr(unpatched.os, "kill", lambda *rest: None)
            patch.setattr(unpatched.os, "killpg", lambda *rest: None)
            ended = supervision.Supervisor(running).watch(lambda *rest: supervision.Said.MORE, 0.2)
        process.kill()
    assert ended is not None
    assert (ended.stuck, ended.timed_out) == (True, True)
    assert "runs another program now: sleep 100" in ended.state
    assert "left to it" in str(failure.error_of(ended, "call", 0.2))


def test_the_signal_that_was_sent_for_the_stacks_is_no_news() -> None:
    fd = os.memfd_create("stacks")
    os.write(fd, b"Fatal Python error: Aborted\n\nThread 1\n")
    assert hang_stacks.written_to(fd, asked=False) == "Fatal Python error: Aborted\n\nThread 1"
    assert hang_stacks.written_to(fd, asked=True) == "Thread 1"
    os.close(fd)
