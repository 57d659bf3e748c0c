"""What NVML tells of GPUs and their memory, by either binding."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.gpus.inventory import (
    phantom_machine,
)
from pytest_cudafork.gpus.nvml import CtypesNvml, Nvml, NvmlError, open_nvml
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.settings import environment


class FakeNvml:
    """Stands for pynvml on a machine with one whole GPU and one in MIG mode."""

    class NVMLError(Exception):
        """As pynvml's."""

    nvmlMemory_v2: int | None = None

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

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if handle == "MIG-2":
            raise self.NVMLError("not permitted")
        if version is None or handle == "MIG-0":
            return SimpleNamespace(total=9 << 20, used=4 << 20)
        return SimpleNamespace(total=9 << 20, reserved=1 << 20, used=3 << 20)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        sizes = {7: 1 << 20, 8: None, 9: 2**64 - 1}
        return [SimpleNamespace(pid=pid, usedGpuMemory=sizes[pid]) for pid in sizes]


def test_mig_instances_stand_in_for_their_gpu() -> None:
    binding = FakeNvml()
    with open_nvml(binding) as nvml:
        assert [tuple(device) for device in nvml.devices()] == [
            (0, "GPU-0", "NVIDIA H200", False, 9 << 20),
            (1, "MIG-0", "NVIDIA H200", True, 9 << 20),
            (1, "MIG-2", "NVIDIA H200", True, 0),
        ]
        assert nvml.memory("GPU-0").used == 4 << 20, "a binding that does not know of more"
        binding.nvmlMemory_v2 = 33554472
        assert nvml.memory("GPU-0").used == 3 << 20
        assert nvml.devices()[0].memory == 8 << 20, "what the driver reserves is not to be had"
        memory = nvml.memory("GPU-0")
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


@pytest.mark.skipif(bool(native_libs.why_not()), reason="the native libraries were not built")
@pytest.mark.parametrize("own", [True, False], ids=["ctypes", "installed"])
def test_a_real_library_is_asked(
    own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = importlib.util.find_spec("pynvml") is not None
    if not own and not installed:
        pytest.skip("nvidia-ml-py is not installed")
    monkeypatch.setenv("_CUDAFORK_FACE", "sm_90x2")
    monkeypatch.setenv(environment.PHANTOM_MEMORY, str(tmp_path / "memory"))
    many = [f"1 {os.getpid()} 7"] * 300  # more than there is room for at first
    ended = f"1 {2**22 + 1} 5000"
    (tmp_path / "memory").write_text("\n".join([*many, "1 0 1000000", "0 1 99", ended]))
    code = ASK.format(library=native_libs.PHANTOM_NVML, own=own)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    answer, error = done.stdout.splitlines()
    devices, (used, processes), with_pynvml = json.loads(answer)
    uuids = [gpu.uuid for gpu in phantom_machine("sm_90x2").gpus]
    size = phantom_machine("sm_90x2").gpus[0].memory
    assert [(number, uuid, mig, most) for number, uuid, _, mig, most in devices] == [
        (0, uuids[0], False, size),
        (1, uuids[1], False, size),
    ]
    assert used == 1000000 + 7 * len(many)
    assert processes == {str(os.getpid()): 7}
    assert with_pynvml == (not own)
    assert error == "NvmlError"


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


class Library:
    """The library itself, as ctypes shows it: one GPU, whose processes need a second call."""

    def __init__(self, *, is_old: bool = False) -> None:
        self.is_old = is_old
        self.calls: list[str] = []
        self.nvmlErrorString = lambda code: b"not found" if code == 6 else None

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetMigMode":
            raise AttributeError(name)

        def function(*args: Any) -> int:
            self.calls.append(name)
            return self.answer(name, *args)

        return function

    def answer(self, name: str, *args: Any) -> int:
        """Write the answer where the last argument points, and return the code."""
        target: Any = getattr(args[-1], "_obj", None) if args else None
        if name in ("nvmlDeviceGetCount_v2", "nvmlDeviceGetMaxMigDeviceCount"):
            target.value = 1
        elif name.endswith("ByUUID") and args[0] == b"GPU-gone":
            return 6
        elif name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
            args[1].value = b"GPU-1" if name.endswith("UUID") else b"NVIDIA H200"
        elif name == "nvmlDeviceGetMemoryInfo":
            args[1]._obj[0], args[1]._obj[2] = 90, 70
        elif name == "nvmlDeviceGetMemoryInfo_v2":
            if self.is_old:
                return 6
            assert args[1]._obj[0] == CtypesNvml.nvmlMemory_v2
            args[1]._obj[1], args[1]._obj[2], args[1]._obj[4] = 90, 10, 7
        elif name.startswith("nvmlDeviceGetComputeRunningProcesses"):
            count, infos = args[1]._obj, args[2]
            if len(infos) < 300:
                count.value = 300
                return 7
            count.value = 2
            infos[0].pid, infos[0].bytes = 11, 5
            infos[1].pid, infos[1].bytes = 12, 2**64 - 1
        return 0


def test_the_library_itself_is_asked_in_the_words_of_the_binding() -> None:
    library = Library()
    with open_nvml(CtypesNvml(library)) as nvml:
        (device,) = nvml.devices()
        assert device == (0, "GPU-1", "NVIDIA H200", False, 80)
        memory = nvml.memory("GPU-1")
    assert (memory.used, memory.processes) == (7, {11: 5, 12: None})
    assert library.calls[0] == "nvmlInit_v2"
    assert library.calls[-1] == "nvmlShutdown"


def test_an_old_library_is_asked_in_older_words() -> None:
    with open_nvml(CtypesNvml(Library(is_old=True))) as nvml:
        assert nvml.memory("GPU-1").used == 70
        assert nvml.devices()[0].memory == 90


def test_instances_of_a_gpu_in_mig_mode_are_asked_one_by_one() -> None:
    library: Any = Library()
    own = CtypesNvml(library)

    def mode(handle: Any, now: Any, later: Any) -> int:
        now._obj.value = 1
        return 0

    library.nvmlDeviceGetMigMode = mode
    with open_nvml(own) as nvml:
        assert [device.mig for device in nvml.devices()] == [True]
    assert "nvmlDeviceGetMigDeviceHandleByIndex" in library.calls


def test_a_failure_of_the_library_is_told_by_its_own_words() -> None:
    def ask() -> None:
        with open_nvml(CtypesNvml(Library())) as nvml:
            nvml.memory("GPU-gone")

    with pytest.raises(NvmlError, match=r"NVML: nvmlDeviceGetHandleByUUID: not found \(6\)"):
        ask()


def test_a_library_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cudafork.gpus.nvml.LIBRARY", "libcudafork-no-such.so")
    words = r"libcudafork-no-such\.so is not to be had"
    with pytest.raises(NvmlError, match=words), open_nvml(CtypesNvml()):
        pass


def test_without_the_binding_the_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("pytest_cudafork.gpus.nvml.LIBRARY", "libcudafork-no-such.so")
    with pytest.raises(NvmlError, match="is not to be had"), open_nvml():
        pass


@pytest.mark.parametrize(
    "without",
    ["nvmlDeviceGetMigMode", "nvmlMemory_v2", "nvmlSystemGetCudaDriverVersion_v2", "NVMLError"],
)
def test_a_binding_that_knows_less_is_not_used(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in dir(CtypesNvml) if name.startswith(("nvml", "NVML"))]
    older = SimpleNamespace(**{name: NvmlError for name in names if name != without})
    monkeypatch.setitem(sys.modules, "pynvml", older)
    monkeypatch.setattr("pytest_cudafork.gpus.nvml.LIBRARY", "libcudafork-no-such.so")
    with pytest.raises(NvmlError, match="is not to be had"), open_nvml():
        pass


def test_a_binding_that_cannot_be_imported_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("print 'Python 2'\n")
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pytest_cudafork.gpus.nvml.LIBRARY", "libcudafork-no-such.so")
    with pytest.raises(NvmlError, match="is not to be had"), open_nvml():
        pass
