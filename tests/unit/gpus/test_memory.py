"""Device memory that outlives a test is blamed on that test's own processes, and on nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.gpus import memory, rocm
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.nvml import DeviceMemory, NvmlError

MIB = 1 << 20
GPU = Gpu(3, "GPU-3a")
MARK = f"cudafork-lease-{os.getpid()}-1-cafe"
IDLE = DeviceMemory(615 * MIB, {})
FORKED = """
import os, sys, time
from pytest_cudafork.gpus import memory, rocm
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


class Nvml:
    """NVML, as far as it is asked here; it refuses one GPU."""

    def memory(self, uuid: str) -> DeviceMemory:
        """Answer."""
        if uuid == "MIG-1":
            raise NvmlError("NVML: no permission")
        return IDLE


def test_each_gpu_is_asked_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "open_nvml", lambda: contextlib.nullcontext(Nvml()))
    monkeypatch.setattr(rocm, "memory", lambda gpu: DeviceMemory(7, {}))
    gpus = [GPU, Gpu(0, "MIG-1", mig=True), Gpu(0, "KFD-1")]
    assert memory.look(gpus) == {
        "GPU-3a": IDLE,
        "MIG-1": memory.Unknown("NVML: no permission"),
        "KFD-1": DeviceMemory(7, {}),
    }
    assert memory.measure(gpus) is None
    assert memory.measure(gpus[::2]) == {"GPU-3a": IDLE, "KFD-1": DeviceMemory(7, {})}


def test_holders_are_named_with_their_tests(
    monkeypatch: pytest.MonkeyPatch, daemon: int, stranger: subprocess.Popen[bytes]
) -> None:
    variables = {"PYTEST_CURRENT_TEST": "test_a.py::test_a[(b)] (setup)"}
    server = subprocess.Popen(["sleep", "600"], env=variables)
    while not memory.phase_of(server.pid):
        assert server.poll() is None
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    sizes = {server.pid: 3 * MIB, stranger.pid: None, os.getpid(): MIB}
    try:
        found = memory.holders(GPU, DeviceMemory(9, sizes), but=[os.getpid()])
        assert [(one.pid, one.held) for one in found] == [
            (server.pid, 3 * MIB),
            (stranger.pid, None),
        ]
        assert str(found[0]).endswith("holds 3 MiB on GPU 3, started by test_a.py::test_a[(b)]")
        assert memory.phase_of(server.pid) == "setup"
        monkeypatch.setattr(memory, "_users_of_a_gpu", lambda: [server.pid])
        hidden = memory.holders(GPU, DeviceMemory(9, {}))
        assert [(one.pid, one.held) for one in hidden] == [(server.pid, None)]
        assert memory.holders(GPU, IDLE._replace(used=0)) == []
    finally:
        server.kill()
        server.wait()
    assert memory.holders(GPU, DeviceMemory(9, {server.pid: 5})) == []
    assert memory.test_of(server.pid) == ""


def test_a_test_in_a_file_whose_name_is_no_utf_8_has_its_mark() -> None:
    kept = memory.put_mark(MARK, "tests/test_\udcff.py::test_b")
    assert memory.test_of(os.getpid()) == "tests/test_\\udcff.py::test_b"
    kept.close()


def test_a_mark_in_memory_tells_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = memory.put_mark(MARK, "a dir/test_a.py::test_b[x]")
    assert memory.test_of(os.getpid()) == "a dir/test_a.py::test_b[x]"
    assert memory.has_mark(os.getpid(), MARK)
    kept.close()
    assert memory.test_of(os.getpid()) != "a dir/test_a.py::test_b[x]"
