"""Which GPUs a session may use: what the machine has, less what the session was not given."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.gpus import inventory, nvml
from pytest_cudafork.gpus.inventory import (
    Gpu,
    Inventory,
    Machine,
    kernel_gpus,
    phantom_machine,
    real_machine,
    take_inventory,
    visible_gpus,
)
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
        ("\u00b2", []),
        ("0,\u0661", [0]),
        ("1" * 5000, []),
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


GIB = 1 << 30


def test_gpus_with_too_little_memory_are_no_candidates() -> None:
    gpus = (Gpu(0, "GPU-0", memory=80 * GIB), Gpu(1, "GPU-1", memory=24 * GIB), Gpu(2, "GPU-2"))
    inventory = take_inventory(Machine(gpus), parse_gpus("auto"), {})
    assert numbers(inventory.candidates(1)) == [0, 1, 2]
    assert numbers(inventory.candidates(1, 24 * GIB)) == [0, 1, 2]
    assert numbers(inventory.candidates(1, 25 * GIB)) == [0, 2], "of one it is not known"
    assert inventory.excess(2, 80 * GIB) == ""
    assert inventory.excess(1, None) == ""
    known = take_inventory(Machine(gpus[:2]), parse_gpus("auto"), {})
    assert known.excess(1, 80 * GIB) == ""
    assert "needs 1 GPU with 81 GiB each; this session has 80 GiB at most" in known.excess(
        1, 81 * GIB
    )
    assert "needs 2 GPUs with 25 GiB each; this session has 80 GiB and 24 GiB at most" in (
        known.excess(2, 25 * GIB)
    )


def test_a_machine_of_which_neither_nvml_nor_the_kernel_tells_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> NoReturn:
        raise nvml.NvmlError("NVML: not supported")

    monkeypatch.setattr(nvml, "open_nvml", refuse)
    monkeypatch.setattr(inventory, "kernel_gpus", lambda: ())
    assert real_machine().unknown.startswith("NVML: not supported; and /proc")
    monkeypatch.setattr(inventory, "kernel_gpus", lambda: FOUR)
    assert (real_machine().gpus, real_machine().unknown) == (FOUR, "")
