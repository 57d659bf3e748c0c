"""Device memory that outlives a test is blamed on that test's own processes, and on nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.gpus import memory
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.nvml import DeviceMemory

MIB = 1 << 20
GPU = Gpu(3, "GPU-3a")
MARK = f"cudafork-lease-{os.getpid()}-1-cafe"
IDLE = DeviceMemory(615 * MIB, {})
FORKED = """
import os, sys, time
from pytest_cudafork.gpus import memory
kept = memory.put_mark(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    os.closerange(3, 256)
    print(os.getpid(), flush=True)
    os.close(1)
    time.sleep(600)
os._exit(0)
"""


@pytest.fixture
def started() -> Iterator[subprocess.Popen[bytes]]:
    """A process that was started by exec with the mark in its environment."""
    process = subprocess.Popen(["sleep", "600"], env={"_CUDAFORK_GPU_LOCKS": f"/tmp/x/{MARK}"})
    # the kernel lets the parent go on a moment before it lays out the new environment
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        assert process.poll() is None
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def daemon() -> Iterator[int]:
    """A daemon that was forked from a marked process, without exec; that process has ended."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, MARK], stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(done.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def answers(monkeypatch: pytest.MonkeyPatch, *later: DeviceMemory | None) -> None:
    """Let NVML give these answers, the last one for ever."""
    queue = list(later)

    def measure(gpus: object) -> dict[str, DeviceMemory] | None:
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        return None if answer is None else {GPU.uuid: answer}

    monkeypatch.setattr(memory, "measure", measure)
    monkeypatch.setattr(memory, "_SETTLE_SECONDS", 0.1)


def test_a_process_started_by_the_test_is_known(
    started: subprocess.Popen[bytes], stranger: subprocess.Popen[bytes]
) -> None:
    assert memory.has_mark(started.pid, MARK)
    assert not memory.has_mark(started.pid, MARK.replace("-1-", "-2-"))
    assert not memory.has_mark(stranger.pid, MARK)


def test_a_daemon_forked_by_the_test_is_known(daemon: int) -> None:
    assert memory.has_mark(daemon, MARK)
    assert MARK.encode() not in Path(f"/proc/{daemon}/environ").read_bytes()


def test_a_process_that_is_gone_is_nobodys(stranger: subprocess.Popen[bytes]) -> None:
    stranger.kill()
    stranger.wait()
    assert not memory.has_mark(stranger.pid, MARK)


def test_what_a_process_of_the_test_holds_is_told(
    monkeypatch: pytest.MonkeyPatch, started: subprocess.Popen[bytes], daemon: int
) -> None:
    held = {started.pid: 674 * MIB, daemon: None}
    answers(monkeypatch, DeviceMemory(1289 * MIB, held))
    found = memory.left_behind([GPU], {GPU.uuid: IDLE}, MARK)
    assert [(one.gpu, one.pid, one.held) for one in found] == [
        (3, started.pid, 674 * MIB),
        (3, daemon, None),
    ]
    text = memory.describe(found)
    assert f"process {started.pid} (sleep 600) holds 674 MiB on GPU 3" in text
    assert f"process {daemon} ({sys.executable}" in text
    assert "holds memory on GPU 3" in text


def test_strangers_are_not_blamed(
    monkeypatch: pytest.MonkeyPatch, stranger: subprocess.Popen[bytes]
) -> None:
    answers(monkeypatch, DeviceMemory(9000 * MIB, {stranger.pid: 8000 * MIB, 1: 300 * MIB}))
    assert memory.left_behind([GPU], {GPU.uuid: IDLE}, MARK) == []


def test_what_was_there_before_the_test_is_not_its_fault(
    monkeypatch: pytest.MonkeyPatch, started: subprocess.Popen[bytes]
) -> None:
    same = DeviceMemory(1289 * MIB, {started.pid: 674 * MIB})
    answers(monkeypatch, same)
    assert memory.left_behind([GPU], {GPU.uuid: same}, MARK) == []


def test_a_process_that_is_just_ending_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, started: subprocess.Popen[bytes]
) -> None:
    answers(monkeypatch, DeviceMemory(1289 * MIB, {started.pid: 674 * MIB}), IDLE)
    assert memory.left_behind([GPU], {GPU.uuid: IDLE}, MARK) == []


def test_where_the_driver_hides_processes_the_tests_own_are_found(
    monkeypatch: pytest.MonkeyPatch,
    started: subprocess.Popen[bytes],
    stranger: subprocess.Popen[bytes],
) -> None:
    monkeypatch.setattr(memory, "_users_of_a_gpu", lambda: [stranger.pid, started.pid])
    answers(monkeypatch, DeviceMemory(1289 * MIB, {}))
    found = memory.left_behind([GPU], {GPU.uuid: IDLE}, MARK)
    assert [(one.pid, one.held) for one in found] == [(started.pid, None)]
    answers(monkeypatch, DeviceMemory(616 * MIB, {}))
    assert memory.left_behind([GPU], {GPU.uuid: IDLE}, MARK) == []


def test_nothing_is_told_where_nvml_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    assert memory.left_behind([GPU], {GPU.uuid: IDLE}, MARK) == []


def test_the_search_for_users_of_a_gpu_reads_any_machine() -> None:
    assert all(isinstance(pid, int) for pid in memory._users_of_a_gpu())
