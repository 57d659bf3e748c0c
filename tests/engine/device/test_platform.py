"""Questions about GPUs: against a phantom's NVML, a stand-in for nvidia-smi, and plain values."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.driver import native_libs
from sample_engine.device import platform
from sample_engine.device.platform import Gpu, Gpus, parse_smi, visible_gpus
from sample_engine.errors import ConfigError
from tests.engine.support.programs import run_python

H200 = [Gpu(n, f"GPU-{n}{n}aa-bb", "NVIDIA H200", (9, 0), 141 << 30) for n in range(4)]
MIG = [
    Gpu(0, "GPU-00aa-bb", "NVIDIA A100", (8, 0), 40 << 30),
    Gpu(1, "MIG-11", "NVIDIA A100 MIG 3g.20gb", (8, 0), 20 << 30, mig=True),
    Gpu(1, "MIG-12", "NVIDIA A100 MIG 3g.20gb", (8, 0), 20 << 30, mig=True),
]


def numbers(text: str, devices: list[Gpu]) -> list[str]:
    """The UUIDs that a value of CUDA_VISIBLE_DEVICES shows."""
    return [gpu.uuid for gpu in visible_gpus(Gpus(tuple(devices), "pynvml"), text).devices]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,4,1", [0]),
        ("none", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("0,,1", [0]),
        ("GPU-22aa-bb,GPU-00", [2, 0]),
        ("gpu-3", [3]),
        ("GPU-2,GPU-22aa", []),
        ("GPU-ff,GPU-0", []),
        ("GPU-", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str, shown: list[int]) -> None:
    assert numbers(text, H200) == [H200[number].uuid for number in shown]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", ["GPU-00aa-bb"]),
        ("1", ["MIG-11"]),
        ("MIG-12", ["MIG-12"]),
        ("MIG-12,MIG-11", ["MIG-12"]),
        ("MIG-1", []),
        ("0,1", ["GPU-00aa-bb"]),
    ],
)
def test_a_process_sees_one_instance_of_a_gpu_in_mig_mode(text: str, shown: list[str]) -> None:
    assert numbers(text, MIG) == shown


@given(st.text(alphabet="0123456789,-+ GPUMIGabx", max_size=20) | st.text(max_size=20))
def test_any_value_shows_some_of_the_devices_each_once(text: str) -> None:
    shown = numbers(text, H200)
    assert len(set(shown)) == len(shown)
    assert set(shown) <= {gpu.uuid for gpu in H200}


@given(st.permutations(range(4)), st.integers(0, 4))
def test_a_list_of_numbers_or_of_uuids_shows_those_in_that_order(order: list[int], n: int) -> None:
    chosen = [H200[number] for number in order[:n]]
    expected = [gpu.uuid for gpu in chosen]
    assert numbers(",".join(str(gpu.number) for gpu in chosen), H200) == expected
    assert numbers(",".join(gpu.uuid for gpu in chosen), H200) == expected


def test_a_value_that_shows_nothing_is_the_reason() -> None:
    why = visible_gpus(Gpus(tuple(H200)), "7").why_none
    assert "CUDA_VISIBLE_DEVICES='7' shows none of the machine's GPUs, which are: 0 (GPU-" in why


PHANTOM = """
from pytest_cudafork.observe.driver import phantom
phantom.install("sm_90x2")
import ctypes, json
from sample_engine.device import platform as p
from sample_engine.errors import ConfigError
from sample_engine.device.driver_probe import probe_driver
try:
    p.device_capability(2)
except ConfigError as error:
    wrong = str(error)
nvml = ctypes.CDLL("libnvidia-ml.so.1")
print(json.dumps({
    "count": p.gpu_count(),
    "capability": p.device_capability(p.gpu_count() - 1) if p.gpu_count() else None,
    "name": p.visible_gpus().devices[0].name if p.gpu_count() else None,
    "memory": p.total_memory() if p.gpu_count() else None,
    "why": p.why_no_gpu(),
    "wrong": wrong,
    "source": p.visible_gpus().source,
    "driver": probe_driver().state.value,
    "nvml after use": nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())),
}))
"""


def ask_phantom(visible: str | None) -> dict[str, Any]:
    """Ask in a process that has a phantom driver of two GPUs and its NVML."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    if native_libs.why_not():
        pytest.skip(f"needs the phantom driver: {native_libs.why_not()}")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run(
        [sys.executable, "-c", PHANTOM], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_nvml_is_asked_and_let_go_and_the_driver_is_not_touched() -> None:
    found = ask_phantom(None)
    assert found["count"] == 2
    assert found["capability"] == [9, 0]
    assert "H100" in found["name"]
    assert found["memory"] == 80 << 30
    assert found["why"] == ""
    assert found["wrong"] == "There is no GPU 2: this process sees 2 GPUs, numbers 0 to 1."
    assert found["source"] == "pynvml"
    assert found["driver"] == "not initialized"
    assert found["nvml after use"] == 1  # NVML_ERROR_UNINITIALIZED


def test_an_empty_value_hides_all_gpus_and_says_so() -> None:
    found = ask_phantom("")
    assert found["count"] == 0
    assert found["why"].startswith("CUDA_VISIBLE_DEVICES='' shows none of the machine's GPUs")
    assert found["wrong"].startswith("There is no GPU 2: CUDA_VISIBLE_DEVICES='' shows none")


def test_a_hidden_gpu_is_not_there() -> None:
    found = ask_phantom("1")
    assert found["count"] == 1
    words = "There is no GPU 2: this process sees 1 GPU, number 0 (CUDA_VISIBLE_DEVICES='1')."
    assert found["wrong"] == words


class FakeNvml(types.ModuleType):
    """NVML of a machine with one GPU in MIG mode, as no machine of a test has it."""

    class NVMLError(Exception):
        """Any error."""

    class NVMLError_NotFound(NVMLError):
        """No instance at that place."""

    class NVMLError_NotSupported(NVMLError):
        """A question that this device cannot be asked."""

    class NVMLError_FunctionNotFound(NVMLError):
        """An older NVML."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.broken = broken

    def nvmlInit(self) -> None:
        """Open it."""
        self.open += 1

    def nvmlShutdown(self) -> None:
        """Close it."""
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.broken:
            raise FakeNvml.NVMLError("the GPU has fallen off the bus")
        answers = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda number: "gpu",
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (8, 0),
            "nvmlDeviceGetMigMode": lambda handle: [1, 1],
            "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
            "nvmlDeviceGetUUID": lambda handle: f"MIG-{handle}".encode(),
            "nvmlDeviceGetName": lambda handle: "NVIDIA A100 MIG 3g.20gb",
            "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=20 << 30),
        }
        return answers[name]

    def _instance(self, handle: str, index: int) -> int:
        if index not in (2, 5):
            raise FakeNvml.NVMLError_NotFound
        return index


def test_nvml_lists_the_instances_of_a_gpu_in_mig_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert platform.gpu_count() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5")
    assert platform.visible_gpus().devices[0].uuid == "MIG-5"
    assert platform.total_memory() == 20 << 30
    assert platform.device_capability() == (8, 0)
    assert nvml.open == 0


SMI = """#!/bin/sh
case "$1" in
  -L) cat "$0.list" ;;
  *) cat "$0.query" ;;
esac
"""
QUERY = """0, GPU-00aa, NVIDIA H200, 9.0, 143771
1, GPU-11aa, NVIDIA GB10, 12.1, [N/A]
"""
LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00aa)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.5gb      Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-11aa)
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi; NVML is broken, so that it is asked."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(broken=True))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "nvidia-smi.query").write_text(QUERY)
    (tmp_path / "nvidia-smi.list").write_text("GPU 0: NVIDIA H200 (UUID: GPU-00aa)\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def test_nvidia_smi_is_asked_where_nvml_does_not_answer(smi: Path) -> None:
    assert platform.visible_gpus().source == "nvidia-smi"
    assert platform.gpu_count() == 2
    assert platform.device_capability(0) == (9, 0)
    assert platform.device_capability(1) == (12, 1)
    assert platform.total_memory(0) == 143771 << 20
    with pytest.raises(ConfigError, match=r"The memory of GPU 1 \(NVIDIA GB10\) is not known"):
        platform.total_memory(1)


def test_the_last_resort_are_the_files_of_the_kernel_module(
    tmp_path: Path, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.write_text(
        "#!/bin/sh\necho Failed to initialize NVML: Driver/library version mismatch\nexit 18\n"
    )
    for address, text in (
        ("0000:01:00.0", "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-1111\n"),
        ("0000:41:00.0", "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????\n"),
        ("0000:81:00.0", None),
    ):
        (tmp_path / "gpus" / address).mkdir(parents=True)
        if text is not None:
            (tmp_path / "gpus" / address / "information").write_text(text)
    monkeypatch.setattr(platform, "_PROC", str(tmp_path / "gpus"))
    monkeypatch.setattr(platform, "_DEVICE_FILE", str(tmp_path / "nvidiactl"))
    assert "but no " in platform.visible_gpus().why_none  # a container without GPUs
    (tmp_path / "nvidiactl").touch()
    found = platform.visible_gpus()
    assert found.source == "/proc"
    assert [gpu.uuid for gpu in found.devices] == [
        "GPU-1111",
        "PCI-0000:41:00.0",
        "PCI-0000:81:00.0",
    ]
    assert found.devices[1].name == "NVIDIA H200"
    with pytest.raises(ConfigError, match=r"compute capability of GPU 0 .* Install nvidia-ml-py"):
        platform.device_capability(0)


def test_where_nobody_answers_each_says_why(
    smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.write_text("#!/bin/sh\necho Failed to initialize NVML: Unknown Error\nexit 255\n")
    monkeypatch.setattr(platform, "_PROC", str(tmp_path / "gpus"))
    assert platform.gpu_count() == 0
    why = platform.why_no_gpu()
    assert "NVML failed (the GPU has fallen off the bus)" in why
    assert "nvidia-smi failed (Failed to initialize NVML: Unknown Error)" in why
    assert "no NVIDIA kernel module is loaded" in why
    with pytest.raises(ConfigError, match="There is no GPU 0: NVML failed"):
        platform.device_capability()


def test_no_library_and_no_program_is_no_gpu_and_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "_PROC", str(tmp_path / "gpus"))
    assert platform.gpu_count() == 0
    assert platform.why_no_gpu().startswith("pynvml is not installed; there is no nvidia-smi; ")


def test_the_answers_of_nvidia_smi_are_read_with_mig_instances() -> None:
    query = "0, GPU-00aa, NVIDIA A100, 8.0, 40960\n1, GPU-11aa, NVIDIA A100, 8.0, 40960\n"
    first, second, third = parse_smi(query, LISTING)
    assert first == Gpu(
        0, "MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "NVIDIA A100 MIG 3g.20gb", (8, 0), None, True
    )
    assert second.uuid.startswith("MIG-a28ad590")
    assert third == Gpu(1, "GPU-11aa", "NVIDIA A100", (8, 0), 40960 << 20)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_answer_of_nvidia_smi_is_read_without_an_error(query: str, listing: str) -> None:
    parse_smi(query, listing)


def test_the_platform_needs_no_torch() -> None:
    code = """
    import sys
    from sample_engine.device import platform
    platform.gpu_count()
    print("torch" in sys.modules)
    """
    assert run_python(code).stdout == "False\n"
