"""Tests of what is learned from outside about a process that hangs, with a py-spy of our own."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_cudafork.process import native_stacks
from pytest_cudafork.process.descendants import process_state
from tests.support.signs import wait_until


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for py-spy beside the interpreter; tests write what it does."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    path = tmp_path / "py-spy"
    path.touch(mode=0o755)
    return path


def _does(py_spy: Path, script: str) -> None:
    py_spy.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The process id of a program that sleeps."""
    process = subprocess.Popen(["sleep", "60"])
    # a process has no command line for a moment when it begins a program
    wait_until(lambda: process_state.program_of(process.pid))
    yield process.pid
    process.kill()
    process.wait()


def test_py_spy_beside_the_interpreter_is_preferred(
    py_spy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(py_spy.parent))
    assert native_stacks.py_spy() == str(py_spy)


def test_py_spy_is_found_on_the_path_or_not_at_all(
    py_spy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", str(py_spy.parent))
    assert native_stacks.py_spy() == str(py_spy)
    monkeypatch.setenv("PATH", "/nowhere")
    assert native_stacks.py_spy() is None
    assert native_stacks.native_stacks(os.getpid()) == ""


def test_py_spy_is_started_where_a_test_has_replaced_what_starts_processes(
    py_spy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _does(py_spy, "echo Thread 1")
    for owner, names in ((subprocess, ("Popen", "run")), (os, ("access", "pipe")), (io, ("open",))):
        for name in names:
            monkeypatch.setattr(owner, name, None)
    assert native_stacks.native_stacks(1) == "Thread 1"


def test_stacks_end_where_pytest_called_the_test(py_spy: Path) -> None:
    _does(
        py_spy,
        "cat <<'END'\n"
        "Process $*\n"
        "Thread 1 (idle): main\n"
        "    futex_wait (libc.so)\n"
        "    test_x (test_x.py:3)\n"
        "    pytest_pyfunc_call (_pytest/python.py:159)\n"
        "    main (pytest)\n"
        "Thread 2 (active): other\n"
        "    spin (lib.so)\n"
        "END",
    )
    assert native_stacks.native_stacks(1).splitlines()[1:] == [
        "Thread 1 (idle): main",
        "    futex_wait (libc.so)",
        "    test_x (test_x.py:3)",
        "    ... pytest and its start",
        "Thread 2 (active): other",
        "    spin (lib.so)",
    ]


def test_py_spy_is_asked_for_native_frames_of_that_process(py_spy: Path) -> None:
    _does(py_spy, 'echo "$@"')
    assert native_stacks.native_stacks(1234) == "dump --native --pid 1234"


def test_what_py_spy_complains_of_is_one_line(py_spy: Path) -> None:
    _does(py_spy, "echo 'Permission denied:'; echo '  try sudo' >&2; exit 3")
    text = native_stacks.native_stacks(1)
    assert text == "(py-spy failed with status 3: Permission denied: try sudo)"


def test_a_py_spy_that_hangs_is_given_up_and_the_process_goes_on(
    py_spy: Path, sleeper: int
) -> None:
    _does(py_spy, f"kill -STOP {sleeper}; exec sleep 60")
    assert native_stacks.native_stacks(sleeper, 0.5) == "(py-spy gave no answer within 0.5 s)"
    assert "stopped" not in native_stacks.thread_states(sleeper)


def test_a_py_spy_that_cannot_be_run_says_why(py_spy: Path) -> None:
    py_spy.write_text("no program at all", encoding="utf-8")
    assert re.match(r"\(py-spy cannot be run: .*\)", native_stacks.native_stacks(1))


def test_each_thread_has_a_line_with_its_name_and_state() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        waits = re.compile(rf"thread {thread.native_id} \('.+'\): sleeping")
        wait_until(lambda: waits.search(native_stacks.thread_states(os.getpid())))
        text = native_stacks.thread_states(os.getpid())
    finally:
        release.set()
        thread.join()
    lines = text.splitlines()
    assert all(re.match(r"thread \d+ \('.*'\): \w+", line) for line in lines)
    assert any(line.startswith(f"thread {os.getpid()} ") and "running" in line for line in lines)


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert native_stacks.thread_states(process.pid) == ""
    assert process_state.program_of(process.pid) == ""


def test_why_there_are_no_stacks(sleeper: int) -> None:
    assert native_stacks.why_no_stacks(sleeper) == "It runs another program now: sleep 60"
    assert "ignores the signals" in native_stacks.why_no_stacks(os.getpid())


THREAD = (
    '[{"os_thread_id": 7, "thread_name": "main", "frames": '
    '[{"filename": "/a.py", "line": 3, "name": "f"}]}]'
)


def test_without_proc_nothing_is_said_of_a_process_without_stacks(
    sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def readlink(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(native_stacks, "os", SimpleNamespace(readlink=readlink))
    assert native_stacks.why_no_stacks(sleeper).endswith("/proc is not there.")


def test_python_stacks_are_read_without_stopping_the_process(py_spy: Path) -> None:
    _does(
        py_spy,
        f"""test "$*" = "dump --nonblocking --full-filenames --json --pid 12" || exit 9
echo '{THREAD}'""",
    )
    stacks, why = native_stacks.python_stacks(12)
    assert (stacks, why) == ((native_stacks.PythonStack(7, "main", ("/a.py:3 in f",)),), "")


def test_what_moved_while_it_was_read_is_read_again(py_spy: Path, tmp_path: Path) -> None:
    _does(
        py_spy,
        f"""test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}
echo '{THREAD}'""",
    )
    assert len(native_stacks.python_stacks(12)[0]) == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no json", "says what cannot be read"),
        ("echo '[{}]'", "says what cannot be read"),
        ("echo 'Error: Permission denied'; echo 'Stack backtrace:'; echo '0: f'; exit 1",
         "py-spy failed with status 1: Error: Permission denied"),
    ],
)  # fmt: skip
def test_why_there_are_no_python_stacks(script: str, words: str, py_spy: Path) -> None:
    _does(py_spy, script)
    stacks, why = native_stacks.python_stacks(12)
    assert stacks == ()
    assert words in why
    assert "backtrace" not in why


def test_without_py_spy_it_is_said_how_to_get_it(
    py_spy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy.unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    assert native_stacks.python_stacks(12) == (
        (),
        "py-spy is not installed: pip install pytest-cudafork[attach]",
    )
