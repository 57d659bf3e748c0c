"""What ``/proc`` says of a process, and words for one that cannot be looked at."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.attach import target
from pytest_cudafork.attach.target import Unreadable, read_target
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.process.descendants.process_state import monotonic_of
from pytest_cudafork.settings import environment
from tests.support.attached import running


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A program that is no Python."""
    process = subprocess.Popen(["sleep", "900"])
    yield process.pid
    process.kill()
    process.wait()


def test_this_process_is_a_python() -> None:
    found = read_target(os.getpid())
    assert (found.pid, found.parent) == (os.getpid(), os.getppid())
    assert os.path.realpath(found.program) == os.path.realpath(sys.executable)
    assert found.python


def test_a_program_that_is_no_python_is_told_apart(sleeper: int) -> None:
    found = read_target(sleeper)
    assert found.python == ""
    assert found.command.startswith("sleep") or "sleep" in found.program


@pytest.mark.parametrize(
    ("path", "is_python"),
    [
        ("/usr/bin/python3.12", True),
        ("/opt/python3.13t", True),
        ("/usr/lib/libpython3.11.so.1.0", True),
        ("/usr/bin/pypy3.10", True),
        ("/usr/lib/python3/dist-packages/a.so", False),
        ("/usr/bin/pythonic/bash", False),
        ("/usr/bin/ruby", False),
    ],
)
def test_pythons_are_known_by_their_files(path: str, is_python: bool) -> None:
    assert bool(target._PYTHON.search(path)) == is_python


def test_a_number_of_no_process_is_told() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(Unreadable, match=f"there is no process {process.pid}; it may have ended"):
        read_target(process.pid)


def test_a_thread_is_no_process_and_its_process_is_named() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(Unreadable) as told:
            read_target(thread.native_id or 0)
    finally:
        done.set()
        thread.join()
    assert str(told.value) == (
        f"{thread.native_id} is a thread of process {os.getpid()}: name the process"
    )


def test_one_that_has_ended_and_was_not_reaped_is_told() -> None:
    process = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        words = f"has ended; its parent, process {os.getpid()}, has not asked for its status"
        with pytest.raises(Unreadable, match=words):
            read_target(process.pid)
    finally:
        process.wait()


def test_a_process_of_another_user_and_a_part_of_the_kernel_have_words_of_their_own(
    sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(code: int) -> None:
        def readlink(path: Any) -> str:
            raise OSError(code, os.strerror(code), path)

        monkeypatch.setattr(os, "readlink", readlink)

    refuses(errno.EACCES)
    with pytest.raises(Unreadable, match=f"process {sleeper} may not be read: .*SYS_PTRACE"):
        read_target(sleeper)
    monkeypatch.setattr(target, "_user_of", lambda pid: "somebody")
    with pytest.raises(Unreadable, match=r"it is somebody's, .*as that user or as root"):
        read_target(sleeper)
    refuses(errno.ENOENT)
    with pytest.raises(Unreadable, match="is a part of the kernel"):
        read_target(sleeper)
    refuses(errno.ESRCH)
    with pytest.raises(Unreadable, match="ended while it was looked at"):
        read_target(sleeper)


def test_a_watched_server_is_known_by_its_driver_and_its_ledger(tmp_path: Path) -> None:
    with running(tmp_path, "touch", "fork", watched=True) as server:
        first, child = map(read_target, server.pids)
    assert first.driver.endswith("libcuda.so.1")
    assert first.phantom
    assert not first.uvm
    assert first.ledger == child.ledger == server.ledger
    assert (first.forked, child.forked, child.parent) == (False, True, first.pid)
    assert first.started <= child.started


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        (["/dev/null", "/dev/dxg"], "/dev/dxg"),
        (["/dev/nvhost-ctrl-gpu"], "/dev/nvhost-ctrl-gpu"),
        (["/dev/nvmap"], "/dev/nvmap"),
        (["/dev/nvidiactl", "/other/dev/dxg"], ""),
    ],
)
def test_devices_of_wsl_and_jetson_are_known(
    monkeypatch: pytest.MonkeyPatch, opened: list[str], expected: str
) -> None:
    monkeypatch.setattr(target, "_opened", lambda pid: opened)
    assert read_target(os.getpid()).other_device == expected


@pytest.mark.parametrize(
    ("mapped", "opened", "expected"),
    [
        ([], [], (False, False, False)),
        (["/usr/lib/libcuda.so.580.65.06"], [], (False, False, False)),
        (["/usr/lib/libnvidia-ml.so.580.65.06"], ["/dev/nvidia-uvm"], (True, True, False)),
        (["/dev/nvidia3"], ["/dev/nvidiactl", "/dev/nvidia-uvm"], (False, True, True)),
        (["/dev/nvidiactl"], ["/dev/nvidia0"], (False, False, True)),
        (["/dev/nvidia-uvm"], [], (False, True, False)),
        (["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0.txt"], [], (False, False, False)),
    ],
)
def test_devices_are_told_apart_by_whether_they_are_open_or_mapped(
    monkeypatch: pytest.MonkeyPatch,
    mapped: list[str],
    opened: list[str],
    expected: tuple[bool, bool, bool],
) -> None:
    monkeypatch.setattr(target, "_mapped", lambda pid: mapped)
    monkeypatch.setattr(target, "_opened", lambda pid: opened)
    found = read_target(os.getpid())
    assert (found.nvml, found.uvm, found.device) == expected


def test_a_ledger_that_is_open_is_found_without_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.jsonl"
    other = tmp_path / "other.jsonl"
    Ledger(str(path)).create()
    other.write_text("{}\n")
    with other.open("rb"), path.open("rb"):
        opened = target._opened(os.getpid())
        assert {str(path), str(other)} <= set(opened)
        monkeypatch.setattr(environment, "LEDGER", "_NO_SUCH_VARIABLE")
        assert target._ledger(os.getpid(), [str(other), str(path)]) == str(path)
    assert target._ledger(os.getpid(), [str(other)]) == ""


def test_a_phantom_of_another_installation_is_one_too() -> None:
    folder = "/venv/lib/python3.12/site-packages/pytest_cudafork/observe/driver/native/lib/cuda"
    assert target._is_phantom(f"{folder}/libcuda.so.1")
    assert not target._is_phantom("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06")


def test_the_start_of_a_process_is_comparable_with_the_ledger() -> None:
    before = time.monotonic_ns()
    process = subprocess.Popen(["sleep", "900"])
    try:
        started = monotonic_of(read_target(process.pid).started)
        tick = 10**9 // os.sysconf("SC_CLK_TCK")
        assert before - 2 * tick <= started <= time.monotonic_ns() + 2 * tick
    finally:
        process.kill()
        process.wait()


def test_names_of_users() -> None:
    assert target._user_of(os.getpid()) == target._name(os.geteuid())
    assert target._name(987654321) == "user 987654321"
    assert target._user_of(0) == "another user"
