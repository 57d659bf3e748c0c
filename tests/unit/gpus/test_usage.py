"""What a test uses: by its own processes on GPUs, and by its process in RAM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from pytest_cudafork.gpus import memory, usage
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.memory import Unknown
from pytest_cudafork.gpus.nvml import DeviceMemory
from pytest_cudafork.gpus.usage import Usage
from pytest_cudafork.process.descendants import leftovers

GIB = 1 << 30
GPUS = (Gpu(0, "GPU-0a"), Gpu(1, "GPU-1b"))
MINE, OTHER = 10, 20


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> list[DeviceMemory | Unknown]:
    """What the second GPU has in use; processes with number ``MINE`` are the test's."""
    answers: list[DeviceMemory | Unknown] = [DeviceMemory(0, {})]

    def look(gpus: Sequence[Gpu]) -> dict[str, DeviceMemory | Unknown]:
        return {gpu.uuid: DeviceMemory(0, {}) if gpu == GPUS[0] else answers[-1] for gpu in gpus}

    monkeypatch.setattr(memory, "look", look)
    monkeypatch.setattr(leftovers, "is_marked", lambda pid, cookie: pid == MINE)
    monkeypatch.setattr(usage, "_LOOK_SECONDS", 0.0)
    return answers


def test_the_peak_is_that_of_the_tests_own_processes(
    second: list[DeviceMemory | Unknown],
) -> None:
    used = Usage(GPUS, None, alone=False)
    for now in (
        DeviceMemory(30 * GIB, {MINE: 5 * GIB, OTHER: 25 * GIB}),
        DeviceMemory(9 * GIB, {MINE: 9 * GIB, OTHER: None}),
        DeviceMemory(8 * GIB, {MINE: None}),
        Unknown("no permission"),
    ):
        second.append(now)
        used.look(os.getpid(), b"")
    assert used.vram == [0, 9 * GIB]
    assert used.gpus_used == 2, "it has to see both, to use the second"
    used.add([11 * GIB, 0, 99 * GIB])
    assert used.vram == [11 * GIB, 9 * GIB]


def test_where_processes_are_hidden_all_that_is_new_is_that_of_a_test_alone(
    second: list[DeviceMemory | Unknown],
) -> None:
    second.append(DeviceMemory(9 * GIB, {}))
    before = {gpu.uuid: DeviceMemory(2 * GIB, {}) for gpu in GPUS}
    alone, shared = Usage(GPUS, before, alone=True), Usage(GPUS, before, alone=False)
    for one in (alone, shared):
        one.look(os.getpid(), b"")
    assert (alone.vram, shared.vram) == ([0, 7 * GIB], [0, 0])
    assert shared.gpus_used == 0


def test_gpus_are_not_looked_at_all_the_time(
    second: list[DeviceMemory | Unknown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_LOOK_SECONDS", 60.0)
    used = Usage(GPUS, None, alone=True)
    used.look(os.getpid(), b"")
    second.append(DeviceMemory(GIB, {MINE: GIB}))
    used.look(os.getpid(), b"")
    assert used.vram == [0, 0]


GROWS = """
import sys
for size in (0, 64 << 20):
    block = bytearray(b"x") * size
    print("grown", flush=True)
    sys.stdin.readline()
"""


def test_the_peak_in_ram_is_the_kernels() -> None:
    # of a process that does nothing between two looks: this one may be growing, or have been larger
    command = [sys.executable, "-S", "-c", GROWS]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        used = Usage((), None, alone=False)
        used.look(process.pid, b"")
        before = usage.peak_of(process.pid)
        assert used.ram == before > 1 << 20
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        used.look(process.pid, b"")
        assert used.ram >= before + (32 << 20)
        process.stdin.close()
    assert usage.peak_of(2**22 + 1) == 0


def test_a_peak_can_be_forgotten() -> None:
    usage.forget_peak()
    assert usage.peak_of(os.getpid()) > 1 << 20


def test_torch_is_asked_if_it_is_there_and_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert usage.reserved_by_torch() == []
    cuda = SimpleNamespace(
        is_initialized=lambda: False, device_count=lambda: 2, max_memory_reserved=lambda n: n + 5
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert usage.reserved_by_torch() == []
    cuda.is_initialized = lambda: True
    assert usage.reserved_by_torch() == [5, 6]


@pytest.mark.parametrize(
    "stand_in",
    [
        SimpleNamespace(),
        SimpleNamespace(cuda=SimpleNamespace()),
        SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)),
        mock.MagicMock(),
    ],
)
def test_what_stands_in_for_torch_in_a_test_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, stand_in: object
) -> None:
    monkeypatch.setitem(sys.modules, "torch", cast("Any", stand_in))
    assert usage.reserved_by_torch() == []
