"""Waits for memory end when it is back, and name who holds it when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from pytest_cudafork.errors import GpuBusyError
from pytest_cudafork.gpus import memory, rocm, waiting
from pytest_cudafork.gpus.inventory import Gpu, Machine, phantom_machine
from pytest_cudafork.gpus.memory import Leftover, Unknown
from pytest_cudafork.gpus.nvml import DeviceMemory
from pytest_cudafork.settings import environment

GIB = 1 << 30
GPUS = (Gpu(0, "GPU-0a"), Gpu(3, "GPU-3b"))
IDLE = DeviceMemory(0, {})
ALLOWED = {gpu.uuid: GIB for gpu in GPUS}


def answers(monkeypatch: pytest.MonkeyPatch, *later: DeviceMemory | Unknown) -> None:
    """Let the second GPU be as told, one look after the other, the last for ever."""
    queue = list(later)

    def look(gpus: Sequence[Gpu]) -> dict[str, DeviceMemory | Unknown]:
        now = queue.pop(0) if len(queue) > 1 else queue[0]
        return {gpu.uuid: now if gpu == GPUS[1] else IDLE for gpu in gpus}

    monkeypatch.setattr(memory, "look", look)


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a test has started."""
    variables = {"PYTEST_CURRENT_TEST": "tests/test_a.py::test_b[x (y)] (call)"}
    process = subprocess.Popen(["sleep", "600"], env=variables)
    while not memory.test_of(process.pid):
        assert process.poll() is None
    yield process
    process.kill()
    process.wait()


def test_one_waits_until_memory_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, DeviceMemory(9 * GIB, {1: 9 * GIB}), DeviceMemory(GIB + 1, {}), IDLE)
    assert waiting.until_idle(GPUS, ALLOWED, 60) == []


def test_what_this_process_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, DeviceMemory(9 * GIB, {os.getpid(): 8 * GIB}))
    assert waiting.until_idle(GPUS, ALLOWED, 0) == []


def test_what_this_process_holds_is_waited_for_where_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, DeviceMemory(9 * GIB, {os.getpid(): 9 * GIB}))
    with pytest.raises(GpuBusyError, match=rf"has 9 GiB in use .*: process {os.getpid()} "):
        waiting.until_idle(GPUS, ALLOWED, 0, own=True)


def test_who_holds_memory_is_named_with_the_test_that_started_it(
    monkeypatch: pytest.MonkeyPatch, server: subprocess.Popen[bytes]
) -> None:
    answers(monkeypatch, DeviceMemory(9 * GIB, {server.pid: 8 * GIB}))
    told: list[Leftover] = []
    with pytest.raises(GpuBusyError) as caught:
        waiting.until_idle(GPUS, ALLOWED, 0.1, end=told.extend)
    assert str(caught.value) == (
        f"after 0.1 s GPU 3 has 9 GiB in use (allowed: 1 GiB): process {server.pid} (sleep 600) "
        "holds 8192 MiB on GPU 3, started by tests/test_a.py::test_b[x (y)]"
    )
    assert {one.pid for one in told} == {server.pid}


def test_hidden_holders_are_said_to_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_users_of_a_gpu", list)
    answers(monkeypatch, DeviceMemory(9 * GIB, {}))
    with pytest.raises(GpuBusyError, match="who holds it, neither the driver nor the kernel tells"):
        waiting.until_idle(GPUS, ALLOWED, 0)


def test_what_nobody_can_tell_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, Unknown("NVML: no permission"))
    unknown = waiting.until_idle(GPUS, ALLOWED, 0)
    assert unknown == ["GPU 3 (GPU-3b): NVML: no permission"]
    assert waiting.until_released([], GPUS, 0) == unknown
    assert "it is not known whether memory of a GPU is back: GPU 3" in waiting.words_of_unknown(
        unknown
    )


def test_a_process_has_released_when_it_has_ended_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, server: subprocess.Popen[bytes]
) -> None:
    mine: dict[int, int | None] = {server.pid: 5 * GIB}
    answers(monkeypatch, IDLE)
    with pytest.raises(GpuBusyError, match=rf"process {server.pid} \(sleep 600\) has not ended"):
        waiting.until_released([server.pid], GPUS, 0.1)
    answers(monkeypatch, DeviceMemory(5 * GIB, mine))
    with pytest.raises(GpuBusyError, match="holds 5120 MiB on GPU 3"):
        waiting.until_released([server.pid], GPUS, 0.1)
    server.kill()
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which nobody has reaped
    answers(monkeypatch, DeviceMemory(5 * GIB, mine), IDLE)
    assert waiting.until_released([server.pid], GPUS, 60) == []


def test_gpus_are_named_by_number_or_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "visible_gpus", lambda: GPUS)
    assert waiting.chosen_gpus([1, "gpu-0"]) == (GPUS[1], GPUS[0])
    for wrong in (2, -1, "GPU-9", "", True):
        with pytest.raises(
            ValueError, match=r"names no GPU .*: there are 0 \(GPU-0a\), 1 \(GPU-3b\)"
        ):
            waiting.chosen_gpus([wrong])


def test_the_gpus_of_a_process_are_those_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.FACE, "sm_90x2")
    monkeypatch.setenv(environment.VISIBLE_GPUS, "1")
    assert waiting.visible_gpus() == phantom_machine("sm_90x2").gpus[1:]
    monkeypatch.setenv(environment.FACE, "absent")
    monkeypatch.setattr(waiting, "has_real_driver", lambda: True)
    monkeypatch.setattr(waiting, "real_machine", lambda: Machine(GPUS))
    monkeypatch.delenv(environment.VISIBLE_GPUS)
    assert waiting.visible_gpus() == GPUS
    monkeypatch.setattr(waiting, "has_real_driver", lambda: False)
    monkeypatch.setattr(rocm, "visible_gpus", lambda: GPUS[:1])
    assert waiting.visible_gpus() == GPUS[:1]


FORKED = """
import os, sys, time
from pytest_cudafork.gpus import memory
kept = memory.put_mark("cudafork-lease-1", "a dir/test_a.py::test_b[ü x]")
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.close(1)
    time.sleep(600)
os._exit(0)
"""


def test_a_daemon_that_was_forked_by_a_test_with_gpus_tells_its_test() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, check=True)
    pid = int(done.stdout)
    try:
        assert memory.test_of(pid) == "a dir/test_a.py::test_b[ü x]"
        assert memory.phase_of(pid) == ""
    finally:
        os.kill(pid, 9)
