"""A profile is read as it was written, on such a machine, and anything else is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.profile import (
    Cost,
    ProfileError,
    models_of,
    read_profile,
    write_profile,
)

MODELS = {"NVIDIA H200": 140 << 30}
COSTS = {
    "test_a.py::test_a[ü]": Cost(1.5, 2, 20 << 30, 1 << 30),
    "test_b.py::test_b": Cost(0.1),
    "test_\udcff.py::test_c": Cost(0.2),  # a file's name that is no UTF-8
}


def test_what_was_written_is_read_on_any_number_of_such_gpus(tmp_path: Path) -> None:
    path = str(tmp_path / "profile.json")
    two = [Gpu(number, f"GPU-{number}", "NVIDIA H200", memory=140 << 30) for number in range(2)]
    write_profile(path, models_of(two), COSTS)
    assert read_profile(path, models_of(two[:1])) == COSTS
    write_profile(path, MODELS, {})
    assert read_profile(path, MODELS) == {}
    assert list(tmp_path.iterdir()) == [tmp_path / "profile.json"]


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"NVIDIA L4": 22 << 30}, r"it had NVIDIA H200 \(140 GiB\), this one has NVIDIA L4 \(22"),
        ({"NVIDIA H200": 70 << 30}, r"this one has NVIDIA H200 \(70 GiB\)"),
        ({}, "this one has no GPU; record it here, to another file"),
    ],
)
def test_a_profile_of_another_machine_is_refused(
    tmp_path: Path, models: dict[str, int], words: str
) -> None:
    path = str(tmp_path / "profile.json")
    write_profile(path, MODELS, COSTS)
    with pytest.raises(ProfileError, match=words):
        read_profile(path, models)


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (140 << 30, (140 << 30) - (512 << 20)),
        (139 << 30, 140 << 30),
        (0, 140 << 30),
        (140 << 30, 0),
    ],
    ids=["another driver", "an older one", "not known then", "not known now"],
)
def test_how_much_the_driver_keeps_for_itself_makes_no_other_machine(
    recorded: int, now: int, tmp_path: Path
) -> None:
    path = str(tmp_path / "profile.json")
    write_profile(path, {"NVIDIA H200": recorded}, COSTS)
    assert read_profile(path, {"NVIDIA H200": now}) == COSTS


def test_instances_of_one_gpu_are_known_by_the_largest() -> None:
    sizes = (18 << 30, 70 << 30, 35 << 30)
    instances = [Gpu(0, f"MIG-{size}", "NVIDIA H200", mig=True, memory=size) for size in sizes]
    assert models_of(instances) == {"NVIDIA H200": 70 << 30}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.pop("tests"), "is no profile"),
        (lambda data: data.update(tests=[1]), "is no profile"),
        (lambda data: data.update(pytest_cudafork_profile=99), "of another version"),
        (lambda data: data.update(gpus=None), "is no profile"),
        (lambda data: data.update(gpus={"a": float("inf")}), "is no profile"),
        (lambda data: data["tests"]["test_b.py::test_b"].pop("ram"), "is no profile"),
        (lambda data: data["tests"]["test_b.py::test_b"].update(vram=-1), "not what a test costs"),
        (lambda data: data["tests"]["test_b.py::test_b"].update(ram="1G"), "not what a test"),
        (lambda data: data["tests"]["test_b.py::test_b"].update(ram=float("inf")), "not what a"),
        (lambda data: data["tests"]["test_b.py::test_b"].update(gpus=0.5), "not what a test"),
        (lambda data: data["tests"]["test_b.py::test_b"].update(gpus=True), "not what a test"),
        (lambda data: data["tests"]["test_b.py::test_b"].update(seconds=1e999), "not what a"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    path = tmp_path / "profile.json"
    write_profile(str(path), MODELS, COSTS)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=words):
        read_profile(str(path), MODELS)


@given(st.data())
def test_a_torn_profile_is_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.mktemp("torn") / "profile.json"
    write_profile(str(path), MODELS, COSTS)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 3))])
    with pytest.raises(ProfileError, match="is no profile, or torn"):
        read_profile(str(path), MODELS)


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"No such file .* record it with --cuda"):
        read_profile(str(tmp_path / "none"), MODELS)
    with pytest.raises(ProfileError, match="Is a directory"):
        read_profile(str(tmp_path), MODELS)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileError, match="is a pipe or a device"):
        read_profile(str(tmp_path / "pipe"), MODELS)
    (tmp_path / "pipe").unlink()
    nested = tmp_path / "nested"
    nested.write_text("[" * 5_000)
    with pytest.raises(ProfileError, match="is no profile, or torn"):
        read_profile(str(nested), MODELS)
    nested.unlink()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_profile(str(tmp_path / "folder"), MODELS, COSTS)
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"], "nothing half done is left"
