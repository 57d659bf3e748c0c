"""Weights files: what is written comes back, and what is wrong is said by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sample_engine.errors import WeightsError
from sample_engine.model import checkpoint
from sample_engine.model.loading import load_eagle_head, load_model
from tests.engine.support.model import SMALL, random_llama
from tests.engine.support.weights import save


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_comes_back_in_bfloat16_digits(tmp_path: Path, tied: bool) -> None:
    config = dataclasses.replace(SMALL, tie_word_embeddings=tied)
    folder = save(tmp_path, config)

    loaded = load_model(str(folder), device="cpu", dtype=torch.float32)

    original = random_llama(config)
    assert loaded.config == config
    assert not loaded.training
    assert all(not parameter.requires_grad for parameter in loaded.parameters())
    assert set(loaded.state_dict()) == set(original.state_dict())
    for name, value in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float()), name


def test_the_file_names_projections_apart_as_hugging_face_does(tmp_path: Path) -> None:
    tensors = load_file(save(tmp_path) / "model.safetensors")

    model = random_llama()
    q, k, v = (
        tensors[f"model.layers.1.self_attn.{name}_proj.weight"].float() for name in ("q", "k", "v")
    )
    assert (len(q), len(k), len(v)) == (48, 16, 16)
    fused = model.layers[1].self_attn.qkv_proj.weight.bfloat16().float()
    assert torch.equal(torch.cat((q, k, v)), fused)
    assert "model.embed_tokens.weight" in tensors
    assert "lm_head.weight" not in tensors


@pytest.mark.parametrize("name", ["embed_tokens", "layers.1.mlp.up_proj", "norm", "lm_head"])
def test_a_tensor_of_any_type_is_read_or_refused_by_name(tmp_path: Path, name: str) -> None:
    """A head that is stored although it is tied (``lm_head``) is a tensor as the others."""
    path = save(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    if name == "lm_head":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].float()
    tensors["model.norm.weight"].fill_(1.0)
    full = "lm_head.weight" if name == "lm_head" else f"model.{name}.weight"
    original = tensors[full]
    for dtype in (torch.float32, torch.bfloat16):
        save_file({**tensors, full: original.to(dtype)}, path)
        load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    for dtype in (torch.float64, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2):
        save_file({**tensors, full: original.to(dtype)}, path)
        with pytest.raises(WeightsError, match=rf"{full} is of \w+: quantized weights are not"):
            load_model(str(tmp_path), device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:5],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"version https://git-lfs.github.com/spec/v1\n" * 3,
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
    ],
    ids=["empty", "no-header", "half", "a-byte-short", "lfs-pointer", "huge-header", "no-json"],
)
@pytest.mark.parametrize("file", ["model", "eagle"])
def test_a_corrupt_file_is_an_error_with_its_name(
    tmp_path: Path, file: str, damage: Callable[[bytes], bytes]
) -> None:
    folder = save(tmp_path)
    path = folder / f"{file}.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    load = load_model if file == "model" else load_eagle_head

    with pytest.raises(WeightsError, match=rf"{file}\.safetensors' cannot be read as safetensors"):
        load(str(folder), device="cpu", dtype=torch.float32)


def without(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def with_more(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(48)


def with_another_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.down_proj.weight"] = torch.zeros(24, 41)


def with_whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(24, dtype=torch.int8)


def with_float8(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)


def with_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, r"layers\.1\.mlp\.up_proj\.weight in .* not finite in torch\.float32"),
        (without, r"missing: model\.norm\.weight\."),
        (with_more, r"unexpected: model\.layers\.0\.self_attn\.q_proj\.bias\."),
        (with_another_shape, r"down_proj\.weight has the shape \[24, 41\], not \[24, 40\]"),
        (with_whole_numbers, r"model\.norm\.weight is of I8: quantized"),
        (with_float8, r"up_proj\.weight is of F8_E4M3: quantized weights are not read"),
        (dict.clear, r"missing: .* and \d+ more"),
    ],
)
def test_weights_of_something_else_are_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    path = save(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)

    with pytest.raises(WeightsError, match=words):
        load_model(str(tmp_path), device="cpu", dtype=torch.float32)


def test_weights_beyond_the_range_of_the_wished_precision_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][0] = -1e9
    save_file(tensors, path)

    load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight .* not finite in torch\.float16"):
        load_model(str(tmp_path), device="cpu", dtype=torch.float16)


def test_writing_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path) / "model.safetensors"
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    model = random_llama(seed=5)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.write(path, model, checkpoint.llama_parts(SMALL, model), {})

    assert path.read_bytes() == before


def test_names_of_tensors_that_do_not_belong_there_are_told_on_one_line(tmp_path: Path) -> None:
    path = save(tmp_path) / "model.safetensors"
    save_file({**load_file(path), "a\x1b[31m\n" + "b" * 1000: torch.ones(1)}, path)
    with pytest.raises(WeightsError, match=r"unexpected: 'a\\x1b\[31m\\nb+\.\.\.") as refused:
        load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    assert len(str(refused.value)) < 1000
