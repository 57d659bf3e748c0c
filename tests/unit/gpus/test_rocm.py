"""AMD's GPUs as the kernel shows them in /sys, rebuilt in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cudafork.gpus import rocm
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.nvml import DeviceMemory


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs and a CPU; process 71 holds memory on the second."""
    monkeypatch.setattr(rocm, "SYS", str(tmp_path))
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    for node, number in enumerate([0, 51000, 52000]):
        folder = nodes / str(node)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{number}\n")
        (folder / "name").write_text("aqua_vanjaram\n")
        (folder / "properties").write_text(f"cpu_cores_count 0\ndrm_render_minor {127 + node}\n")
    for minor, used in ((128, 10), (129, 30 << 30)):
        device = tmp_path / f"class/drm/renderD{minor}/device"
        device.mkdir(parents=True)
        (device / "mem_info_vram_used").write_text(f"{used}\n")
    process = tmp_path / "class/kfd/kfd/proc/71"
    process.mkdir(parents=True)
    (process / "vram_51000").write_text("0\n")
    (process / "vram_52000").write_text(f"{29 << 30}\n")
    return tmp_path


def test_gpus_are_counted_as_the_kernel_does(kernel: Path) -> None:
    first, second = rocm.visible_gpus({})
    assert (first.number, first.uuid, second.uuid) == (0, "KFD-51000", "KFD-52000")
    assert rocm.is_one(first)
    assert not rocm.is_one(Gpu(0, "GPU-1"))
    assert rocm.visible_gpus({"ROCR_VISIBLE_DEVICES": "1"}) == (second,)
    masks = {"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}
    assert rocm.visible_gpus(masks) == (first,)
    assert rocm.visible_gpus({"HIP_VISIBLE_DEVICES": ""}) == ()


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        ("GPU-00000000DEADBEEF", [1]),
        ("GPU-00000000deadbeef,0", [1, 0]),
        ("GPU-000000000000AFFE,GPU-00000000DEADBEEF", [0, 1]),
        ("GPU-0000000000000001,1", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("1,7,0", [1]),
        ("1,1", [1]),
        (" 1 , 0", [1, 0]),
        ("\u00b2", []),
        ("1" * 5000, []),
        ("none", []),
    ],
)
def test_a_mask_is_read_as_rocm_reads_it(mask: str, seen: list[int], kernel: Path) -> None:
    for node, unique in ((1, 0xAFFE), (2, 0xDEADBEEF)):
        path = kernel / f"class/kfd/kfd/topology/nodes/{node}/properties"
        path.write_text(f"{path.read_text()}unique_id {unique}\n")
    every = rocm.visible_gpus({})
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        assert rocm.visible_gpus({name: mask}) == tuple(every[number] for number in seen)


@pytest.mark.parametrize("unique", ["", "unique_id 0\n", "unique_id ?\n"])
def test_a_uuid_that_the_kernel_does_not_tell_could_be_any(unique: str, kernel: Path) -> None:
    for node in (1, 2):
        path = kernel / f"class/kfd/kfd/topology/nodes/{node}/properties"
        path.write_text(path.read_text() + unique)
    assert len(rocm.visible_gpus({"ROCR_VISIBLE_DEVICES": "GPU-00000000DEADBEEF"})) == 2


def test_memory_is_told_by_process(kernel: Path) -> None:
    first, second = rocm.visible_gpus({})
    assert rocm.memory(first) == DeviceMemory(10, {})
    assert rocm.memory(second) == DeviceMemory(30 << 30, {71: 29 << 30})


def test_what_the_kernel_does_not_tell_is_not_known(kernel: Path) -> None:
    (kernel / "class/drm/renderD128/device/mem_info_vram_used").write_text("?")
    (kernel / "class/drm/renderD129/device/mem_info_vram_used").unlink()
    first, second = rocm.visible_gpus({})
    with pytest.raises(rocm.RocmError, match="holds no number"):
        rocm.memory(first)
    with pytest.raises(rocm.RocmError, match="does not say how much memory is in use"):
        rocm.memory(second)
    with pytest.raises(rocm.RocmError, match="shows no drm_render_minor of AMD GPU 7"):
        rocm.memory(Gpu(0, "KFD-7"))


def test_a_machine_without_one_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm, "SYS", str(tmp_path))
    assert rocm.visible_gpus() == ()
