"""Driver and GPUs as NVML tells of them, and what follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.doctor import gpus
from pytest_cudafork.doctor.finding import Level
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.settings import environment

H200 = Gpu(0, "GPU-a", "NVIDIA H200")
T4 = Gpu(1, "GPU-b", "Tesla T4")
TWO = Machine(True, "580.65.06", (13, 0), ((H200, (9, 0)), (T4, (7, 5))))


@pytest.fixture(autouse=True)
def whole_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have all of a driver."""
    monkeypatch.setattr(gpus, "has_kernel_part", lambda: True)
    monkeypatch.setattr(gpus, "why_no_driver", lambda: "")


class FakeNvml:
    """Stands for pynvml on a machine with one GPU."""

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        if name == self.failing:
            raise self.NVMLError("Driver/library version mismatch")
        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetUUID": "GPU-a",
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=9, used=0),
            "nvmlSystemGetDriverVersion": b"580.65.06",
            "nvmlSystemGetCudaDriverVersion_v2": 13010,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlMemory_v2": None,
        }
        answer = answers[name]
        return answer if name == "nvmlMemory_v2" else lambda *args: answer


def test_what_nvml_tells() -> None:
    machine = gpus.look(FakeNvml())
    assert (machine.release, machine.cuda, machine.trouble) == ("580.65.06", (13, 1), "")
    ((gpu, capability),) = machine.gpus
    assert (gpu.name, gpu.uuid, capability) == ("NVIDIA H200", "GPU-a", (9, 0))
    assert [each.text for each in gpus.examine(machine)] == [
        "release 580.65.06, for CUDA 13.1 at most",
        "0: NVIDIA H200, sm_90, GPU-a",
    ]
    assert machine.to_plain()["gpus"][0]["capability"] == (9, 0)


def test_a_capability_that_nvml_keeps_to_itself_is_unknown() -> None:
    machine = gpus.look(FakeNvml("nvmlDeviceGetCudaComputeCapability"))
    assert machine.gpus[0][1] is None
    assert "capability unknown" in gpus.examine(machine)[1].text


def test_a_driver_that_does_not_fit_its_kernel_module_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (found,) = gpus.examine(gpus.look(FakeNvml("nvmlInit")))
    assert found.level is Level.PROBLEM
    assert "NVML: Driver/library version mismatch" in found.text
    assert "reboot" in found.fix


def test_a_driver_without_nvml_makes_counting_a_touch() -> None:
    (found,) = gpus.examine(Machine(True, trouble="NVML: there is none"))
    assert found.level is Level.WARNING
    assert "device_count() initializes CUDA" in found.consequence


@pytest.mark.parametrize("failing", ["", "nvmlInit"])
def test_a_part_of_a_driver_is_a_warning_whatever_nvml_says(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "has_kernel_part", lambda: True)
    monkeypatch.setattr(gpus, "why_no_driver", lambda: "its library is missing")
    (found,) = gpus.examine(gpus.look(FakeNvml(failing)))
    assert found.level is Level.WARNING
    assert "its library is missing" in found.text
    assert "'compute'" in found.fix


def test_no_driver_is_worth_a_note_and_no_gpu_a_warning() -> None:
    (found,) = gpus.examine(Machine(False, trouble="NVML: there is none"))
    assert (found.level, found.fix) == (Level.NOTE, "")
    assert "phantom" in found.consequence
    assert [each.level for each in gpus.examine(Machine(True, "580", (13, 0)))] == [
        Level.OK,
        Level.WARNING,
    ]


@pytest.mark.parametrize("part", ["", "its library is missing"])
@pytest.mark.parametrize(
    ("native", "torch", "words"),
    [
        (True, True, "run against the phantom driver: touches and forks are judged"),
        (True, False, "run against the phantom driver: touches and forks are judged"),
        (False, True, "is not here: only touches by torch are seen"),
        (False, False, "is not here, nor is torch: no touch is seen, and no fork is judged"),
    ],
)
def test_without_a_driver_it_is_said_what_is_seen(
    part: str, native: bool, torch: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_libs, "why_not", lambda: "" if native else "not built")
    monkeypatch.setattr(gpus, "torch_is_missing", lambda: not torch)
    (found,) = gpus.examine(Machine(False, trouble="NVML: there is none", missing=part))
    assert words in found.consequence
    assert ("touches and forks are judged" in found.consequence) is native


@pytest.mark.parametrize(
    ("text", "names"),
    [(None, [0, 1]), ("1", [1]), ("GPU-b,GPU-a", [0, 1]), ("", []), ("7", [])],
)
def test_which_gpus_cuda_would_show(
    text: str | None, names: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is None:
        monkeypatch.delenv(environment.VISIBLE_GPUS, raising=False)
    else:
        monkeypatch.setenv(environment.VISIBLE_GPUS, text)
    assert [gpu.number for gpu, _ in TWO.visible()] == names
