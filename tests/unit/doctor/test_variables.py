"""What is said of variables that are set, and that nothing is said of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cudafork.doctor.finding import Level
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.variables import JUDGES, MPS_PREFIX, examine_variables
from pytest_cudafork.observe.driver import native_libs
from tests.unit.doctor.test_gpus import H200, TWO

NONE = Machine(False)
UNTOLD = Machine(True, trouble="NVML: refused")
ONE = Machine(True, "580", (13, 0), ((H200, (9, 0)),))


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for name in JUDGES:
        monkeypatch.delenv(name, raising=False)
    for name in ("PIPE_DIRECTORY", "LOG_DIRECTORY", "ACTIVE_THREAD_PERCENTAGE"):
        monkeypatch.delenv(MPS_PREFIX + name, raising=False)


def test_nothing_is_said_of_what_is_not_set() -> None:
    assert examine_variables(TWO) == []


@pytest.mark.parametrize(
    ("name", "text", "machine", "level", "words"),
    [
        ("PYTORCH_NVML_BASED_CUDA_CHECK", "1", ONE, Level.WARNING, "clean here touches CUDA"),
        ("PYTORCH_NVML_BASED_CUDA_CHECK", "yes", ONE, Level.NOTE, "changes nothing"),
        ("CUDA_VISIBLE_DEVICES", "1", TWO, Level.NOTE, "shows 1 of 2 GPUs (number 1)"),
        ("CUDA_VISIBLE_DEVICES", "", TWO, Level.NOTE, "all GPUs are hidden"),
        ("CUDA_VISIBLE_DEVICES", "4", TWO, Level.PROBLEM, "names no GPU of this machine"),
        ("CUDA_VISIBLE_DEVICES", "0,0", TWO, Level.PROBLEM, "or one twice"),
        ("CUDA_VISIBLE_DEVICES", "0", NONE, Level.NOTE, "there is no GPU here"),
        ("CUDA_VISIBLE_DEVICES", "0", UNTOLD, Level.NOTE, "which GPUs are here (NVML: refused)"),
        ("CUDA_INJECTION64_PATH", "/no/nsys.so", ONE, Level.WARNING, "which does not exist"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", ONE, Level.WARNING, "fatal error of one process"),
        ("LD_PRELOAD", "libfast.so", ONE, Level.NOTE, "before Python is"),
        ("TRITON_INTERPRET", "1", ONE, Level.WARNING, "bfloat16"),
        ("TRITON_INTERPRET", "Yes", ONE, Level.WARNING, "bfloat16"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", ONE, Level.WARNING, "captures fail"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0", ONE, Level.WARNING, "as by any value"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "", ONE, Level.WARNING, "as by any value"),
        ("CUDA_LAUNCH_BLOCKING", "1", ONE, Level.NOTE, "races"),
        ("_CUDAFORK_WATCH", "{}", ONE, Level.NOTE, "watched session"),
    ],
)
def test_what_is_said_of_what_is_set(
    name: str,
    text: str,
    machine: Machine,
    level: Level,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, text)
    (found,) = examine_variables(machine)
    assert found.level is level
    assert words in f"{found.text} {found.consequence}"
    assert found.subject in (name, f"{MPS_PREFIX}*")
    assert found.fix or level is Level.NOTE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("CUDA_INJECTION64_PATH", native_libs.INJECTION, id="injection library"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("TRITON_INTERPRET", "0"),
        ("LD_PRELOAD", ""),
        ("LD_LIBRARY_PATH", "/usr/lib"),
        ("_CUDAFORK_WATCH", ""),
    ],
)
def test_values_that_change_nothing_are_passed_over(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    assert examine_variables(ONE) == []


def test_a_driver_for_linking_is_found_in_the_path_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stubs"
    folder.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{folder}/")
    assert examine_variables(ONE) == []
    (folder / "libcuda.so.1").touch()
    (found,) = examine_variables(ONE)
    assert found.level is Level.PROBLEM
    assert str(folder) in found.text


def test_unlike_gpus_have_two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    assert examine_variables(ONE) == []
    (found,) = examine_variables(TWO)
    assert (found.level, found.subject) == (Level.WARNING, "CUDA_DEVICE_ORDER")
