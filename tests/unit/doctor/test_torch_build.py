"""torch and Triton, judged by their files, against the driver and the GPUs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_cudafork.doctor import torch_build
from pytest_cudafork.doctor.children import Answer
from pytest_cudafork.doctor.finding import Level
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.packages import Installed
from pytest_cudafork.doctor.torch_build import (
    Torch,
    examine_import,
    examine_torch,
    examine_triton,
    read_torch,
)
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.observe.driver import native_libs
from tests.support.imports import TOUCH

H200, B200, V100 = (Gpu(0, "GPU-a", name) for name in ("NVIDIA H200", "NVIDIA B200", "Tesla V100"))
NONE = Machine(False)


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def machine(gpu: Gpu, capability: tuple[int, int] | None, cuda: tuple[int, int]) -> Machine:
    return Machine(True, "535.1", cuda, ((gpu, capability),))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    if text is not None:
        (folder / "version.py").write_text(text)
    monkeypatch.setattr(torch_build, "find", lambda *names: Installed(str(folder), "9.9", "torch"))


def test_the_build_is_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "__version__ = '2.11.0+cu130'\ncuda = '13.0'\nhip = None\n")
    torch, findings = read_torch()
    assert torch == Torch(str(tmp_path), "2.11.0+cu130", "13.0", "")
    assert (torch.cuda_version, findings) == ((13, 0), [])
    installed(tmp_path, monkeypatch, "__version__ = '2.11.0'\ncuda = None\nhip = '7.1'\n")
    assert read_torch()[0].other == "ROCm"


@pytest.mark.parametrize("text", [None, "no python"])
def test_a_folder_that_is_no_torch_is_a_problem(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, text)
    torch, (found,) = read_torch()
    assert found.level is Level.PROBLEM
    assert str(tmp_path) in found.text
    assert torch.version == "9.9"


@pytest.mark.parametrize(("why", "words"), [("", "are seen"), ("no", "not seen either")])
def test_no_torch_is_worth_a_note(why: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "find", lambda *names: None)
    monkeypatch.setattr(native_libs, "why_not", lambda: why)
    torch, (found,) = read_torch()
    assert (torch, found.level) == (Torch(), Level.NOTE)
    assert found.consequence.endswith(words)


@pytest.mark.parametrize(
    ("torch", "seen", "level", "words"),
    [
        (Torch("t", "2.13.0+cpu"), NONE, Level.OK, "without CUDA"),
        (Torch("t", "2.13.0+cpu"), machine(H200, (9, 0), (13, 0)), Level.WARNING, "are GPUs here"),
        (Torch("t", "2.9", other="ROCm"), NONE, Level.WARNING, "built for ROCm"),
        (Torch("t", "2.9", "13.0"), machine(H200, (9, 0), (13, 1)), Level.OK, "for CUDA 13.0"),
        (Torch("t", "2.9", "12.8"), machine(H200, (9, 0), (12, 2)), Level.OK, "for CUDA 12.8"),
        (
            Torch("t", "2.9", "13.0"),
            machine(H200, (9, 0), (12, 2)),
            Level.PROBLEM,
            "knows CUDA 12.2",
        ),
        (Torch("t", "2.4", "12.1"), machine(B200, (10, 0), (13, 0)), Level.WARNING, "NVIDIA B200"),
        (Torch("t", "2.9", "13.0"), machine(V100, (7, 0), (13, 0)), Level.WARNING, "Tesla V100"),
        (Torch("t", "2.9", "13.0"), machine(V100, None, (13, 0)), Level.OK, "for CUDA 13.0"),
        (Torch("t", "2.9", "odd"), machine(H200, (9, 0), (12, 0)), Level.OK, "for CUDA odd"),
    ],
)
def test_whether_a_build_fits(torch: Torch, seen: Machine, level: Level, words: str) -> None:
    last = examine_torch(torch, seen)[-1]
    assert last.level is level
    assert words in last.text


def test_what_to_install_for_a_gpu_that_is_too_new_or_too_old() -> None:
    new = examine_torch(Torch("t", "2.4", "12.1"), machine(B200, (10, 0), (13, 0)))[-1]
    old = examine_torch(Torch("t", "2.9", "13.0"), machine(V100, (7, 0), (13, 0)))[-1]
    assert new.fix == "install a torch that is built for CUDA 12.8 or later"
    assert old.fix == "install a torch that is built for CUDA 12"


@pytest.mark.parametrize(
    ("found", "wanted", "cuda", "level", "words"),
    [
        (Installed("t", "3.6.0", "triton"), ["triton==3.6.0"], "13.0", Level.OK, "requires"),
        (Installed("t", "3.9.0", "triton"), [], "", Level.OK, "triton 3.9.0"),
        (Installed("t"), ["triton==3.6.0"], "13.0", Level.OK, "(no version)"),
        (Installed("t", "3.5", "triton"), ["triton==3.6.0"], "13.0", Level.WARNING, "requires"),
        (None, ["triton==3.6.0"], "13.0", Level.WARNING, "not installed"),
        (None, [], "", Level.OK, "not installed"),
    ],
)
def test_whether_triton_is_the_one_that_torch_requires(
    found: Installed | None,
    wanted: list[str],
    cuda: str,
    level: Level,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_build, "find", lambda *names: found)
    monkeypatch.setattr(torch_build, "required", lambda *names: wanted)
    (said,) = examine_triton(Torch("t", "2.9", cuda))
    assert said.level is level
    assert words in said.text
    assert level is Level.OK or said.fix == "pip install 'triton==3.6.0'"


@pytest.mark.slow
def test_an_import_is_tried_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "warez_whole.py").write_text("print('a word of its own')")
    (tmp_path / "warez_touches.py").write_text(f"{TOUCH}\nraise ImportError('undefined symbol: x')")
    assert examine_import("warez_whole", "W") == ([], {"error": "", "touches": []})
    touch, error = examine_import("warez_touches", "W")[0]
    assert (touch.level, error.level) == (Level.WARNING, Level.PROBLEM)
    assert "warez_touches.py:1: module body, runs at import" in touch.text
    assert error.text == "`import warez_touches` fails: ImportError: undefined symbol: x"


@pytest.mark.slow
def test_an_import_that_ends_its_process_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "warez_dies.py").write_text("import os; os.abort()")
    (found,), _ = examine_import("warez_dies", "W")
    assert found.level is Level.PROBLEM
    assert "SIGABRT" in found.text


@pytest.mark.slow
@pytest.mark.parametrize("safely", [False, True])
def test_the_import_finds_what_the_doctor_finds(
    safely: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -P`` does not look into its folder, and so neither does the child."""
    monkeypatch.chdir(tmp_path)
    Path("wave.py").write_text("raise RuntimeError('this one')")  # the standard library has one
    if not safely:
        monkeypatch.setattr(sys, "path", ["", *sys.path])
    findings, _ = examine_import("wave", "W")
    assert ["this one" in found.text for found in findings] == ([] if safely else [True])


def test_an_import_that_could_not_be_tried_is_not_said_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Answer(None, None, "No usable temporary directory found")
    monkeypatch.setattr(torch_build, "ask", lambda *args, **more: refused)
    (found,), _ = examine_import("warez", "W")
    assert found.level is Level.WARNING
    assert "could not be tried: No usable temporary" in found.text


def test_each_row_names_its_source() -> None:
    rows = [*torch_build.SINCE.values(), *torch_build.LEFT_OUT.values()]
    assert all(version and len(source) > 30 for version, source in rows)


def test_of_a_gpu_that_no_document_names_nothing_is_said() -> None:
    unknown = examine_torch(Torch("t", "2.9", "12.1"), machine(B200, (10, 7), (13, 0)))
    assert [each.level for each in unknown] == [Level.OK]
