"""Which FlashAttention is here, by its files; and whether it fits torch, Python and GPUs."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from pytest_cudafork.doctor.finding import Finding, Level
from pytest_cudafork.doctor.flash_attention import FAMILIES, examine_flash_attention
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.torch_build import Torch
from pytest_cudafork.gpus.inventory import Gpu

TORCH = Torch("t", "2.8.1+cu128", "12.8")
SUFFIX = EXTENSION_SUFFIXES[0]


def gpus(*capabilities: tuple[int, int]) -> Machine:
    found = [(Gpu(n, f"GPU-{n}", f"model {n}"), each) for n, each in enumerate(capabilities)]
    return Machine(True, "580", (13, 0), tuple(found))


NONE = gpus()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # what is installed here does not count
    others = [entry for entry in sys.path if "-packages" not in entry]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def install(site: Path, name: str, version: str, *files: str) -> None:
    for file in files:
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def examine(machine: Machine = NONE, *, torch: Torch = TORCH) -> list[Finding]:
    findings, facts = examine_flash_attention(torch, machine, imports=False)
    assert bool(facts) != ("none is installed" in findings[0].text)
    return findings


@pytest.mark.parametrize(
    ("torch", "so"),
    [(TORCH, "attention takes the kernels of torch itself"), (Torch(), "")],
    ids=["torch", "no torch"],
)
def test_none_is_nothing_to_worry_about(torch: Torch, so: str, site: Path) -> None:
    (found,) = examine(torch=torch)
    expected = Level.OK, "none is installed", so
    assert (found.level, found.text, found.consequence) == expected


def test_each_family_is_known_by_its_module(site: Path) -> None:
    files = {
        "flash-attn": ("flash_attn/__init__.py", f"flash_attn_2_cuda{SUFFIX}"),
        "fa3-fwd": ("fa3_fwd_interface.py", "fa3_fwd/_C.abi3.so"),
        "flash-attn-3": ("flash_attn_interface.py", "flash_attn_3/_C.abi3.so"),
        "flash-attn-4": ("flash_attn/cute/__init__.py",),
        "vllm": ("vllm/__init__.py", "vllm/vllm_flash_attn/__init__.py"),
    }
    for name, paths in files.items():
        install(site, name, "1.0", *paths)
    findings, facts = examine_flash_attention(TORCH, NONE, imports=False)
    assert {each.level for each in findings} == {Level.OK}
    assert set(facts) == {family.module for family in FAMILIES}
    assert sorted(fact["distribution"] for fact in facts.values()) == sorted(files)


def test_the_fourth_alone_is_not_taken_for_the_second(site: Path) -> None:
    install(site, "flash-attn-4", "4.0", "flash_attn/cute/__init__.py")
    (found,) = examine()
    assert found.subject == "FlashAttention-4"


def test_a_wheel_for_another_python_is_a_problem(site: Path) -> None:
    install(
        site,
        "flash-attn",
        "2.8.3",
        "flash_attn/__init__.py",
        "flash_attn_2_cuda.cpython-36m-x86_64-linux-gnu.so",
    )
    found, *_ = examine_flash_attention(TORCH, NONE, imports=True)[0]
    assert found.level is Level.PROBLEM
    assert "another Python: flash_attn_2_cuda.cpython-36m" in found.text
    assert "pip install --no-build-isolation --force-reinstall flash-attn" in found.fix


@pytest.mark.parametrize(("torch", "told"), [("2.8.0+cu128", False), ("2.11.0+cu130", True)])
def test_a_wheel_for_another_torch_is_told(torch: str, told: bool, site: Path) -> None:
    install(site, "flash-attn", "2.8.3+cu12torch2.8cxx11abiTRUE", "flash_attn/__init__.py")
    (found,) = examine(torch=Torch("t", torch, "12.8"))
    assert (found.level is Level.WARNING) == told
    assert told == (f"built for torch 2.8; this is {torch}" in found.text)


@pytest.mark.parametrize(
    ("name", "file", "capabilities", "level"),
    [
        ("flash-attn", "flash_attn/__init__.py", [(7, 5)], Level.PROBLEM),
        ("flash-attn", "flash_attn/__init__.py", [(8, 0), (12, 0)], Level.OK),
        ("fa3-fwd", "fa3_fwd_interface.py", [(9, 0)], Level.OK),
        ("fa3-fwd", "fa3_fwd_interface.py", [(9, 0), (7, 5)], Level.WARNING),
        ("fa3-fwd", "fa3_fwd_interface.py", [(10, 0)], Level.PROBLEM),
        ("flash-attn-4", "flash_attn/cute/__init__.py", [(10, 0), (9, 0)], Level.OK),
        ("flash-attn-4", "flash_attn/cute/__init__.py", [(7, 5)], Level.PROBLEM),
        ("vllm", "vllm/vllm_flash_attn/__init__.py", [(11, 0)], Level.OK),
    ],
)
def test_gpus_without_kernels(
    name: str, file: str, capabilities: list[tuple[int, int]], level: Level, site: Path
) -> None:
    install(site, name, "1.0", file)
    (found,) = examine(gpus(*capabilities))
    assert found.level is level
    assert level is Level.OK or "none for GPU" in found.text


@pytest.mark.parametrize(
    ("name", "file", "capability"),
    [
        ("flash-attn", "flash_attn/__init__.py", (11, 0)),
        ("fa3-fwd", "fa3_fwd_interface.py", (8, 0)),
        ("flash-attn-4", "flash_attn/cute/__init__.py", (12, 0)),
    ],
)
def test_what_no_document_says_is_said_to_be_unknown(
    name: str, file: str, capability: tuple[int, int], site: Path
) -> None:
    install(site, name, "1.0", file)
    is_there, found = examine(gpus(capability))
    assert (is_there.level, found.level) == (Level.OK, Level.NOTE)
    assert "is unknown: its releases differ" in found.text


def test_each_row_names_its_source() -> None:
    assert all(len(family.source) > 30 for family in FAMILIES)


@pytest.mark.slow
def test_its_import_is_tried(site: Path) -> None:
    install(site, "fa3-fwd", "1.0", "fa3_fwd_interface.py")
    (site / "fa3_fwd_interface.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    (found,), facts = examine_flash_attention(TORCH, NONE, imports=True)
    assert found.level is Level.PROBLEM
    assert "undefined symbol: _ZN3c10" in found.text
    assert "undefined symbol" in facts["fa3_fwd_interface"]["import"]["error"]
