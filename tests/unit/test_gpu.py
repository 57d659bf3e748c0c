"""The public functions that wait for GPUs, as unittest classes and conftests call them."""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_cudafork import CudaForkWarning, GpuBusyError, gpu
from pytest_cudafork.gpus import memory, waiting
from pytest_cudafork.gpus.inventory import Gpu, Machine
from pytest_cudafork.gpus.memory import Unknown
from pytest_cudafork.gpus.nvml import DeviceMemory
from pytest_cudafork.settings import environment

GIB = 1 << 30
GPUS = (Gpu(0, "GPU-0a"), Gpu(1, "GPU-1b"))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceMemory | Unknown]:
    """What is in use on two GPUs."""
    found: dict[str, DeviceMemory | Unknown] = {one.uuid: DeviceMemory(0, {}) for one in GPUS}

    def look(gpus: Sequence[Gpu]) -> dict[str, DeviceMemory | Unknown]:
        return {one.uuid: found[one.uuid] for one in gpus}

    monkeypatch.setattr(memory, "look", look)
    monkeypatch.setattr(waiting, "visible_gpus", lambda: GPUS)
    return found


def test_idle_gpus_are_waited_for(used: dict[str, DeviceMemory | Unknown]) -> None:
    used["GPU-1b"] = DeviceMemory(2 * GIB, {1: 2 * GIB})
    assert gpu.wait_idle([0])
    assert gpu.wait_idle(spare="2GiB")
    with pytest.raises(GpuBusyError, match=r"GPU 1 has 2 GiB in use \(allowed: 1 GiB\)"):
        gpu.wait_idle(timeout=0)
    with pytest.raises(GpuBusyError, match="allowed: 0 B"):
        gpu.wait_idle(["GPU-1b"], spare="0", timeout=0)


def test_what_this_process_holds_counts_where_that_is_asked_for(
    used: dict[str, DeviceMemory | Unknown],
) -> None:
    used["GPU-0a"] = DeviceMemory(2 * GIB, {os.getpid(): 2 * GIB})
    assert gpu.wait_idle([0], timeout=0)
    with pytest.raises(GpuBusyError, match=r"GPU 0 has 2 GiB in use \(allowed: 1 GiB\)"):
        gpu.wait_idle([0], timeout=0, own=True)


def test_where_there_is_no_gpu_a_number_of_one_is_refused_with_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "visible_gpus", lambda: ())
    with pytest.raises(ValueError, match="0 names no GPU that this process may use: it may use no"):
        gpu.wait_idle([0])


def test_wrong_arguments_are_refused(used: dict[str, DeviceMemory | Unknown]) -> None:
    with pytest.raises(ValueError, match="names no GPU that this process may use"):
        gpu.wait_idle([7])
    with pytest.raises(ValueError, match="'much' is not a size"):
        gpu.wait_idle(spare="much")
    for single in (0, "GPU-1b", b"0"):
        with pytest.raises(TypeError, match="give numbers or UUIDs of GPUs in a list"):
            gpu.wait_idle(single)  # type: ignore[arg-type]
    for wrong in (0, [-1], [True], ["12"], 10**30):
        with pytest.raises(ValueError, match="is not the number of a process"):
            gpu.wait_release(wrong)  # type: ignore[arg-type]


def test_processes_are_waited_for(used: dict[str, DeviceMemory | Unknown]) -> None:
    process = subprocess.Popen(["sleep", "600"])
    with pytest.raises(GpuBusyError, match="has not ended"):
        gpu.wait_release(process.pid, timeout=0)
    process.kill()
    assert gpu.wait_release([process.pid])
    process.wait()


def test_what_nobody_can_tell_is_a_warning(used: dict[str, DeviceMemory | Unknown]) -> None:
    used["GPU-0a"] = Unknown("NVML: no permission")
    with pytest.warns(CudaForkWarning, match=r"not known .* GPU 0 \(GPU-0a\): NVML: no") as caught:
        assert not gpu.wait_idle()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CudaForkWarning)
        assert not gpu.wait_release(2**22 + os.getpid())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"timeout": -1}, ValueError, "timeout=-1: a time is 0 or more seconds"),
        ({"timeout": float("nan")}, ValueError, "timeout=nan: "),
        ({"timeout": "1"}, TypeError, "timeout='1': a time is a number of seconds"),
        ({"timeout": True}, TypeError, "timeout=True: "),
        ({"spare": 1 << 20}, TypeError, "spare=1048576: a size is a text, as in '512MiB'"),
    ],
)
def test_a_wrong_argument_is_told_where_there_is_no_gpu_too(
    arguments: Any, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "visible_gpus", lambda: ())
    with pytest.raises(error, match=re.escape(words)):
        gpu.wait_idle(**arguments)
    if "timeout" in arguments:
        with pytest.raises(error, match=re.escape(words)):
            gpu.wait_release(os.getpid(), **arguments)
    for no_pids in (None, "", "12", b"12"):
        with pytest.raises(TypeError, match=r"pids=.*: give the number of a process, or several"):
            gpu.wait_release(no_pids)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [gpu.wait_idle, lambda: gpu.wait_release(2**31 - 1, timeout=0)])
def test_where_nobody_tells_which_gpus_there_are_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[], bool]
) -> None:
    for name in (environment.VISIBLE_GPUS, environment.FACE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "has_real_driver", lambda: True)
    machine = Machine((), "NVML: none; and /proc shows none", "NVML: none")
    monkeypatch.setattr(waiting, "real_machine", lambda: machine)
    with pytest.warns(CudaForkWarning, match="which GPUs there are: NVML: none"):
        assert not wait()
    monkeypatch.setenv(environment.VISIBLE_GPUS, "")
    assert wait(), "all are hidden from this process"
    monkeypatch.delenv(environment.VISIBLE_GPUS)
    monkeypatch.setattr(waiting, "real_machine", lambda: Machine((), "NVML finds no GPU"))
    assert wait()
