"""Tests of loading: what is written comes back, dummies, and every file that is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sample_engine.errors import ConfigError, WeightsError
from sample_engine.model import checkpoint
from sample_engine.model.config import LlamaConfig
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.model.llama import Llama
from sample_engine.model.loading import load_eagle_head, load_model, read_config
from tests.engine.support.model import SMALL, random_llama


def save(folder: Path, config: LlamaConfig = SMALL) -> Path:
    """Write a random model and its head to a folder."""
    folder.mkdir(exist_ok=True)
    values = dataclasses.asdict(config) | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    model = random_llama(config)
    parts = checkpoint.llama_parts(config, model)
    checkpoint.write(folder / "model.safetensors", model, parts, {})
    head = EagleHead(EagleConfig.for_target(config))
    metadata = {"config": head.config.to_json()}
    checkpoint.write(folder / "eagle.safetensors", head, checkpoint.plain_parts(head), metadata)
    return folder


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


def test_a_saved_head_comes_back(tmp_path: Path) -> None:
    folder = save(tmp_path)

    head = load_eagle_head(str(folder), device="cpu", dtype=torch.bfloat16)

    stored = load_file(folder / "eagle.safetensors")
    assert {name: value.dtype for name, value in head.state_dict().items()} == dict.fromkeys(
        stored, torch.bfloat16
    )
    assert all(torch.equal(value, stored[name]) for name, value in head.state_dict().items())
    assert head.config == EagleConfig.for_target(SMALL)


@pytest.mark.parametrize("load", [load_model, load_eagle_head], ids=["model", "head"])
def test_dummies_depend_on_the_seed_alone(load: Callable[..., Any]) -> None:
    first, same, other = (
        load("tiny", load_format="dummy", device="cpu", dtype=torch.bfloat16, seed=seed)
        for seed in (1, 1, 2)
    )

    states = [dict(module.state_dict()) for module in (first, same, other)]
    matrices = [name for name, value in states[0].items() if value.dim() > 1]
    assert all(value.dtype == torch.bfloat16 for value in states[0].values())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(not torch.equal(states[0][name], states[2][name]) for name in matrices)


def test_the_eight_billion_shape_has_its_parameters() -> None:
    with torch.device("meta"):
        model = Llama(read_config("llama-3-8b"))

    assert sum(parameter.numel() for parameter in model.parameters()) == 8_030_261_248


@pytest.mark.gpu
def test_a_dummy_of_eight_billion_parameters_is_made_on_the_gpu_alone() -> None:
    script = """
import resource, torch
from sample_engine.model.loading import load_model
torch.zeros(1, device="cuda")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load_model("llama-3-8b", load_format="dummy", device="cuda", dtype=torch.bfloat16, seed=0)
peak = torch.cuda.max_memory_allocated() / 2**30
assert 14.9 < peak < 17, peak
assert {(p.device.type, p.dtype) for p in model.parameters()} == {("cuda", torch.bfloat16)}
weight = model.layers[31].mlp.down_proj.weight
assert 0.9 < float(weight.float().std()) * weight.shape[1] ** 0.5 < 1.1
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
assert grown < 2, grown
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_the_tiny_shape_is_there_without_weights() -> None:
    config = read_config("tiny")

    assert (config.vocab_size, config.eos_token_id) == (257, 256)
    assert config.max_position_embeddings >= 1024


def test_a_shape_without_weights_says_how_to_get_a_model() -> None:
    with pytest.raises(WeightsError, match="load_format='dummy'"):
        load_model("llama-3-8b", device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("file", ["model", "eagle"])
def test_missing_weights_are_named(tmp_path: Path, file: str) -> None:
    folder = save(tmp_path)
    (folder / f"{file}.safetensors").unlink()
    load = load_model if file == "model" else load_eagle_head

    words = {"model": "no weights file '.*model.safetensors'.*dummy", "eagle": "needs a draft head"}
    with pytest.raises(WeightsError, match=words[file]):
        load(str(folder), device="cpu", dtype=torch.float32)


def test_sharded_weights_are_recognized(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")

    with pytest.raises(WeightsError, match="several files are not read"):
        load_model(str(folder), device="cpu", dtype=torch.float32)


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


def with_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, r"layers\.1\.mlp\.up_proj\.weight in .* not finite in torch\.float32"),
        (without, r"missing: model\.norm\.weight\."),
        (with_more, r"unexpected: model\.layers\.0\.self_attn\.q_proj\.bias\."),
        (with_another_shape, r"down_proj\.weight has the shape \[24, 41\], not \[24, 40\]"),
        (with_whole_numbers, r"model\.norm\.weight .* is of torch\.int8"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size=None must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be a whole number of at least 1"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"num_key_value_heads": 4}, "must be a multiple of num_key_value_heads=4"),
        ({"rope_theta": -1}, "rope_theta=-1 must be a number above 0"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id=\[1, 2\] must be one token"),
        ({"attention_bias": True}, "attention_bias=True is not supported, only False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only 'silu'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling=.* is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn' is not supported"),
        ({"architectures": ["Foo"]}, r"architectures=\['Foo'\] is not supported, only \['LlamaFor"),
        ({"architectures": []}, r"architectures=\[\] is not supported"),
        ({"model_type": "mamba"}, "model_type='mamba' is not supported, only 'llama'"),
    ],
)
def test_a_configuration_that_is_no_llama_of_ours_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = save(tmp_path) / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(json.dumps(values), encoding="utf-8")

    with pytest.raises(ConfigError, match=words):
        read_config(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_configuration_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(str(tmp_path))


def test_missing_settings_are_named_and_others_follow_from_them(tmp_path: Path) -> None:
    values = {
        "vocab_size": 10,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 100,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")

    config = read_config(str(tmp_path))

    assert (config.head_dim, config.num_key_value_heads) == (8, 4)
    assert config.rope_theta == 500000.0
    assert not config.tie_word_embeddings
    del values["vocab_size"], values["hidden_size"]
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ConfigError, match="vocab_size is missing; hidden_size is missing"):
        read_config(str(tmp_path))


@pytest.mark.parametrize("model", ["tny", "/no/such/folder", ""])
def test_an_unknown_model_is_refused_with_those_that_are_known(model: str) -> None:
    with pytest.raises(ConfigError, match="'tiny', 'llama-3-8b', and no folder"):
        load_model(model, device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "carries no 'config'"),
        ({"config": "{"}, "cannot be read"),
        ({"config": "[]"}, "cannot be read"),
        ({"config": '{"layer": {}, "aux_layers": [0]}'}, "cannot be read"),
    ],
)
def test_a_head_without_its_configuration_is_refused(
    tmp_path: Path, metadata: dict[str, str], words: str
) -> None:
    path = save(tmp_path) / "eagle.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", **metadata})

    with pytest.raises(WeightsError, match=words):
        load_eagle_head(str(tmp_path), device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    "change", [{"hidden_size": 16}, {"vocab_size": 258}, {"num_hidden_layers": 2}]
)
def test_a_head_of_another_model_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    ours = save(tmp_path / "ours", dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]
    theirs = save(tmp_path / "theirs")
    (theirs / "eagle.safetensors").replace(ours / "eagle.safetensors")

    with pytest.raises(WeightsError, match="is of another model"):
        load_eagle_head(str(ours), device="cpu", dtype=torch.float32)


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
