"""What NVML tells of GPUs and their memory, by either binding."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.gpus.inventory import (
    phantom_machine,
)
from pytest_cudafork.gpus.nvml import Nvml, NvmlError, open_nvml
from pytest_cudafork.observe.driver import native_libs


class FakeNvml:
    """Stands for pynvml on a machine with one whole GPU and one in MIG mode."""

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self) -> None:
        self.users = 0

    def nvmlInit(self) -> None:
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "GPU-0":
            raise self.NVMLError("not supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index == 1:
            raise self.NVMLError("not found")
        return f"MIG-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        if uuid == b"GPU-gone":
            raise self.NVMLError("not found")
        return uuid.decode()

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3 << 20)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        sizes = {7: 1 << 20, 8: None, 9: 2**64 - 1}
        return [SimpleNamespace(pid=pid, usedGpuMemory=sizes[pid]) for pid in sizes]


def test_mig_instances_stand_in_for_their_gpu() -> None:
    binding = FakeNvml()
    with open_nvml(binding) as nvml:
        assert [tuple(device) for device in nvml.devices()] == [
            (0, "GPU-0", "NVIDIA H200", False),
            (1, "MIG-0", "NVIDIA H200", True),
            (1, "MIG-2", "NVIDIA H200", True),
        ]
        memory = nvml.memory("GPU-0")
    assert memory.used == 3 << 20
    assert memory.processes == {7: 1 << 20, 8: None, 9: None}
    assert binding.users == 0


def test_nvml_is_shut_down_and_its_failure_is_one_kind_of_error() -> None:
    binding = FakeNvml()

    def ask(nvml: Nvml) -> None:
        nvml.memory("GPU-gone")

    with pytest.raises(NvmlError, match="NVML: not found"), open_nvml(binding) as nvml:
        ask(nvml)
    assert binding.users == 0


ASK = """
import ctypes, json, sys
from pytest_cudafork.gpus import nvml
ctypes.CDLL({library!r}, mode=ctypes.RTLD_GLOBAL)
binding = nvml.CtypesNvml() if {own} else None
with nvml.open_nvml(binding) as opened:
    devices = opened.devices()
    memory = opened.memory(devices[1].uuid)
    missing = ""
    print(json.dumps([devices, memory, "pynvml" in sys.modules]))
with nvml.open_nvml(binding) as opened:
    try:
        opened.memory("GPU-gone")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(not native_libs.available(), reason="the native libraries were not built")
@pytest.mark.parametrize("own", [True, False], ids=["ctypes", "installed"])
def test_a_real_library_is_asked(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.util.find_spec("pynvml") is not None
    if not own and not installed:
        pytest.skip("nvidia-ml-py is not installed")
    monkeypatch.setenv("_CUDAFORK_FACE", "sm_90x2")
    code = ASK.format(library=str(native_libs.PHANTOM_NVML), own=own)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    answer, error = done.stdout.splitlines()
    devices, (used, processes), with_pynvml = json.loads(answer)
    uuids = [gpu.uuid for gpu in phantom_machine("sm_90x2").gpus]
    assert [(number, uuid, mig) for number, uuid, _, mig in devices] == [
        (0, uuids[0], False),
        (1, uuids[1], False),
    ]
    assert (used, processes) == (512 << 20, {})
    assert with_pynvml == (not own)
    assert error.startswith("NVMLError")


def test_without_the_library_there_is_one_kind_of_error() -> None:
    code = (
        "from pytest_cudafork.gpus import nvml; nvml.LIBRARY = 'libno-such.so.1'\n"
        "try:\n"
        "    with nvml.open_nvml(nvml.CtypesNvml()): pass\n"
        "except nvml.NvmlError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert "libno-such.so.1 is not to be had" in done.stdout
