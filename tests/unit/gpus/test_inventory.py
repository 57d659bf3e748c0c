"""Which GPUs a session may use: what the machine has, less what the session was not given."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.gpus.inventory import (
    Gpu,
    Inventory,
    Machine,
    kernel_gpus,
    phantom_machine,
    take_inventory,
    visible_gpus,
)
from pytest_cudafork.gpus.nvml import Nvml, NvmlError, open_nvml
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.settings.gpu_requests import parse_gpus

FOUR = tuple(Gpu(number, f"GPU-{number}a{number}b-00") for number in range(4))
MIGS = (Gpu(0, "MIG-11", mig=True), Gpu(0, "MIG-12", mig=True))
MIXED = (*MIGS, Gpu(1, "GPU-1a"), Gpu(2, "GPU-2a"))


def numbers(gpus: tuple[Gpu, ...]) -> list[int]:
    """Return the numbers of GPUs."""
    return [gpu.number for gpu in gpus]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,9,1", [0]),
        ("0,1,0", []),
        ("none", []),
        ("GPU-1a1b-00", [1]),
        ("GPU-2a,0", [2, 0]),
        ("gpu-1a1b-00", []),
        ("GPU-", []),
        ("GPU-9", []),
        ("GPU-1A1B", [1]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text: str, seen: list[int]) -> None:
    assert numbers(visible_gpus(text, FOUR)) == seen


@given(st.permutations(FOUR), st.integers(min_value=0, max_value=4))
def test_what_a_lease_writes_reads_back_as_the_same_gpus(gpus: list[Gpu], n: int) -> None:
    text = ",".join(gpu.visible_as for gpu in gpus[:n])
    assert visible_gpus(text, FOUR) == tuple(gpus[:n])


def test_a_mig_instance_is_named_by_its_uuid_and_a_gpu_in_mig_mode_by_any() -> None:
    assert visible_gpus("MIG-12", MIXED) == (MIGS[1],)
    assert MIGS[1].visible_as == "MIG-12"
    assert visible_gpus("1,0", MIXED) == (MIXED[2], *MIGS)


@pytest.mark.parametrize(
    ("option", "environment", "left"),
    [
        ("auto", None, [0, 1, 2, 3]),
        ("2", None, [0, 1]),
        ("0", None, []),
        ("9", None, [0, 1, 2, 3]),
        ("3,1", None, [1, 3]),
        ("2,9", None, [2]),
        ("GPU-3a", None, [3]),
        ("auto", "3,2", [3, 2]),
        ("1", "3,2", [3]),
        ("0,2", "3,2", [2]),
        ("0,1", "3,2", []),
        ("auto", "", []),
    ],
)
def test_the_option_leaves_out_more_of_what_the_session_was_given(
    option: str, environment: str | None, left: list[int]
) -> None:
    env = {} if environment is None else {"CUDA_VISIBLE_DEVICES": environment}
    inventory = take_inventory(Machine(FOUR), parse_gpus(option), env)
    assert numbers(inventory.gpus) == left


@given(
    st.sampled_from(["auto", "0", "1", "3", "0,2", "1,", "GPU-3a,0"]),
    st.none() | st.lists(st.integers(0, 6), max_size=5).map(lambda few: ",".join(map(str, few))),
    st.integers(1, 6),
)
def test_a_shortage_is_told_exactly_where_there_are_too_few(
    option: str, environment: str | None, n: int
) -> None:
    env = {} if environment is None else {"CUDA_VISIBLE_DEVICES": environment}
    inventory = take_inventory(Machine(FOUR), parse_gpus(option), env)
    assert set(inventory.gpus) <= set(inventory.visible) <= set(FOUR)
    assert len(set(inventory.gpus)) == len(inventory.gpus)
    assert bool(inventory.shortage(n)) == (len(inventory.gpus) < n)


def test_the_reason_says_what_limits_the_session() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert take_inventory(Machine(FOUR), parse_gpus("1"), env).shortage(2) == (
        "needs 2 GPUs; this session has 1 (the machine has 4, --cuda-fork-gpus=1, "
        "CUDA_VISIBLE_DEVICES=0,1)"
    )
    assert take_inventory(Machine(FOUR), parse_gpus("auto"), {}).shortage(99) == (
        "needs 99 GPUs; this session has 4 (the machine has 4)"
    )
    assert take_inventory(Machine((), "it has no driver"), parse_gpus("2"), {}).shortage(1) == (
        "needs 1 GPU; this machine has none (it has no driver)"
    )


def test_one_process_is_never_promised_two_mig_instances() -> None:
    inventory = Inventory(MIXED, MIXED, Machine(MIXED))
    assert inventory.candidates(1) == MIXED
    assert inventory.candidates(2) == MIXED[2:]
    assert inventory.shortage(3) == (
        "needs 3 GPUs; this session has 2 beside 2 MIG instances, of which CUDA shows a process "
        "one (the machine has 4)"
    )


def test_a_face_of_the_phantom_is_a_machine() -> None:
    machine = phantom_machine("sm_100x2")
    assert [gpu.visible_as for gpu in machine.gpus] == ["0", "1"]
    assert "B200" in machine.gpus[0].name
    assert phantom_machine("absent").gpus == ()


def test_the_kernels_driver_is_read_where_there_is_no_nvml(tmp_path: Path) -> None:
    for address, uuid in (("0000:3b:00.0", "GPU-5466639d-dcae"), ("0000:00:06.0", "GPU-????-??")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n"
        )
    (tmp_path / "stray").mkdir()
    assert kernel_gpus(str(tmp_path)) == (
        Gpu(0, "PCI-0000:00:06.0", "NVIDIA H200"),
        Gpu(1, "GPU-5466639d-dcae", "NVIDIA H200"),
    )
    assert kernel_gpus(str(tmp_path / "nowhere")) == ()


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
