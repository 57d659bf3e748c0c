"""Weights in several files: what is missing, cut short or of another model is said by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sample_engine.errors import WeightsError
from sample_engine.model.weight_files import opened, shown

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of a tensor each, and their index."""
    save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / FIRST)
    save_file({"b": torch.ones(4, dtype=torch.bfloat16)}, tmp_path / SECOND)
    index(tmp_path, {"a": FIRST, "b": SECOND})
    return tmp_path


def index(folder: Path, placed: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}), encoding="utf-8")


def test_tensors_of_all_files_are_read_whole_or_in_part(folder: Path) -> None:
    with opened(folder / "model.safetensors") as files:
        assert {name: (each.shape, each.dtype) for name, each in files.found.items()} == {
            "a": ((2, 3), "F32"),
            "b": ((4,), "BF16"),
        }
        assert files.tensor("a").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert files.tensor("a", (slice(1, 2), slice(None))).tolist() == [[3, 4, 5]]
        assert files.tensor("b").tolist() == [1, 1, 1, 1]
        assert files.wrong_dtypes(["a", "b"]) == []


def test_one_whole_file_counts_more_than_an_index(folder: Path) -> None:
    save_file({"c": torch.ones(1, dtype=torch.int8)}, folder / "model.safetensors")
    with opened(folder / "model.safetensors") as files:
        assert list(files.found) == ["c"]
        assert "c is of I8: quantized weights are not read" in files.wrong_dtypes(["c"])[0]


def claim(size: int) -> bytes:
    """A file whose header claims a tensor of so many bytes, and that has none of them."""
    header = {"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: claim(1 << 40),
        lambda data: struct.pack("<Q", 1 << 60) + data[8:],
        lambda data: data + b"\0" * 8,
    ],
    ids=["cut", "header cut", "empty", "a terabyte claimed", "a huge header", "more than it says"],
)
def test_a_damaged_shard_is_named_before_a_tensor_is_read(
    folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = folder / FIRST
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(WeightsError, match=f"{FIRST}' cannot be read as safetensors"):  # noqa: SIM117
        with opened(folder / "model.safetensors"):
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        ({"a": FIRST, "b": "model-3.safetensors"}, r"names 2 files, of which 1 are not there: 'mo"),
        ({"a": SECOND, "b": SECOND}, f"a is in '{SECOND}', and it is not there: the files are of"),
        ({"a": SECOND, "b": FIRST}, f"a is in '{SECOND}', and it is in '{FIRST}' instead"),
        ({"a": "../" + FIRST, "b": SECOND}, "must be a file of the same folder"),
        ({"a": ["x"], "b": SECOND}, "must be a file of the same folder"),
        ({"a": "", "b": SECOND}, "must be a file of the same folder"),
        ({"a": "..", "b": SECOND}, "of which 1 are not there: '..'"),
        ({"a": "x" * 300, "b": SECOND}, "of which 1 are not there: 'xxx"),
        ({"a": "x\0", "b": SECOND}, "of which 1 are not there"),
        ({"a": "\ud800", "b": SECOND}, "of which 1 are not there"),
        ({}, "has no 'weight_map'"),
        ("all", "has no 'weight_map'"),
    ],
)
def test_an_index_of_other_files_is_refused(folder: Path, placed: Any, words: str) -> None:
    index(folder, placed)
    with pytest.raises(WeightsError, match=words):  # noqa: SIM117
        with opened(folder / "model.safetensors"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_an_index_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / INDEX).write_bytes(text.encode("latin-1"))
    with pytest.raises(WeightsError, match=r"index\.json' (cannot be read|has no 'weight_map')"):  # noqa: SIM117
        with opened(folder / "model.safetensors"):
            pytest.fail("it was opened")


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4)}, folder / SECOND)
    with pytest.raises(WeightsError, match="which of them counts cannot be told"):  # noqa: SIM117
        with opened(folder / "model.safetensors"):
            pytest.fail("it was opened")


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*load_format='dummy'"):  # noqa: SIM117
        with opened(tmp_path / "model.safetensors"):
            pytest.fail("it was opened")


def test_a_name_of_a_tensor_is_told_on_one_line_and_in_short(tmp_path: Path) -> None:
    plain = "model.layers.0.self_attn.q_proj.weight"
    assert shown(plain) == plain
    assert shown("a\x1b[31m\nb") == r"'a\x1b[31m\nb'"
    assert len(shown("x" * 100_000)) < 200
    odd = "a\x1b[31m\n" + "b" * 1000
    for name in (FIRST, SECOND):
        save_file({odd: torch.ones(1)}, tmp_path / name)
    index(tmp_path, {odd: FIRST, "c": SECOND})
    with pytest.raises(WeightsError) as refused:  # noqa: SIM117
        with opened(tmp_path / "model.safetensors"):
            pytest.fail("it was opened")
    assert "which of them counts cannot be told" in str(refused.value)
    told = [str(refused.value)]
    header = json.dumps({odd: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    with pytest.raises(WeightsError) as refused:  # noqa: SIM117
        with opened(tmp_path / "model.safetensors"):
            pytest.fail("it was opened")
    told.append(str(refused.value))
    for words in told:
        assert "\x1b" not in words
        assert len(words) < 2000
