"""The shape of a model, read from its folder: what is refused, and with which words."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sample_engine import LLM
from sample_engine.errors import ConfigError
from sample_engine.model.loading import TINY_FOLDER, load_model, read_config
from tests.engine.support.weights import save


def test_the_tiny_shape_is_there_without_weights() -> None:
    config = read_config("tiny")

    assert (config.vocab_size, config.eos_token_id) == (257, 256)
    assert config.max_position_embeddings >= 1024


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size=None must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be a whole number of at least 1"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"num_key_value_heads": 4}, "must be a multiple of num_key_value_heads=4"),
        ({"rope_theta": -1}, "rope_theta=-1 must be a number above 0"),
        ({"eos_token_id": [1, "2"]}, r"eos_token_id=\[1, '2'\] must be a token, a list of tokens"),
        ({"eos_token_id": [1, 257]}, r"eos_token_id=\[1, 257\] is not among the vocab_size=257"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000 is more than 1024"),
        ({"vocab_size": 1 << 40}, "vocab_size=1099511627776 must be a whole number"),
        (
            {"vocab_size": (1 << 31) - 1, "hidden_size": (1 << 31) - 1},
            "vocab_size=2147483647 and hidden_size=2147483647 make weights of 4611686014132420609",
        ),
        (
            {"intermediate_size": (1 << 31) - 1, "hidden_size": 1 << 20},
            "intermediate_size=2147483647 and hidden_size=1048576 make weights",
        ),
        (
            {"num_attention_heads": 1 << 30, "head_dim": 1 << 30, "num_key_value_heads": 1},
            "head_dim=1073741824 and hidden_size",
        ),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no' must be true or false"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps=1000.* must be a number above 0"),
        ({"rope_theta": 10**400}, "rope_theta=1000.* must be a number above 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small' must be a number above 0"),
        ({"partial_rotary_factor": 0.1}, "RoPE would turn 0 numbers of a head"),
        ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4} is not supported"),
        ({"attention_bias": True}, "attention_bias=True is not supported, only False"),
        ({"is_causal": False}, "is_causal=False is not supported, only True"),
        ({"per_layer_config": {"1": {"rms_norm_eps": 0.5}}}, "per_layer_config={'1'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only 'silu'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type='llama3' needs factor"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type='longrope' is not supported"),
        ({"architectures": ["Foo"]}, r"architectures=\['Foo'\] is not supported, only \['LlamaFor"),
        ({"architectures": []}, r"architectures=\[\] is not supported"),
        (
            {"model_type": "mamba"},
            "model_type='mamba' is not supported, only 'llama', 'mistral', 'qwen2', 'qwen3'",
        ),
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


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000, " " * (1 << 24) + "{}"])
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


def test_the_generation_configuration_knows_the_ends(tmp_path: Path) -> None:
    folder = save(tmp_path)
    path = folder / "generation_config.json"
    path.write_text('{"eos_token_id": [5, 6], "temperature": 0.6}', encoding="utf-8")
    assert read_config(str(folder)).eos_token_ids == (5, 6)
    path.write_text("{}", encoding="utf-8")
    assert read_config(str(folder)).eos_token_ids == (256,)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"generation_config\.json' holds no JSON object"):
        read_config(str(folder))
    for eos, words in (("257", "257 is not among the vocab_size=257"), ('"</s>"', "must be a tok")):
        path.write_text(f'{{"eos_token_id": {eos}}}', encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"generation_config\.json' cannot .*{words}"):
            read_config(str(folder))


@pytest.mark.parametrize("model", ["tny", "/no/such/folder", ""])
def test_an_unknown_model_is_refused_with_those_that_are_known(model: str) -> None:
    with pytest.raises(ConfigError, match="'tiny', 'llama-3-8b', and no folder"):
        load_model(model, device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("error", [PermissionError(13, "no"), OSError(36, "too long")])
def test_a_model_that_cannot_be_looked_at_is_refused(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: bool) -> os.stat_result:
        raise error

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigError, match=r"'x/y/config\.json' cannot be looked at: \[Errno"):
        read_config("x/y")


@pytest.mark.parametrize("name", ["a" * 300, "a" * 5000, "a\0b", "\ud800"])
def test_a_name_that_no_folder_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="model="):
        read_config(name)


def test_a_folder_without_utf8_is_refused_and_taken_by_a_link(tmp_path: Path) -> None:
    # With random weights, too, where nothing but a message between processes has the name.
    folder = tmp_path / os.fsdecode(b"model\xff")
    try:
        shutil.copytree(TINY_FOLDER, folder)
    except OSError as error:
        pytest.skip(f"this file system has no such name: {error}")
    for load_format in ("auto", "dummy"):
        with pytest.raises(ConfigError, match=r"model\\udcff' has no UTF-8, .* symbolic link"):
            LLM(folder, device="cpu", worker_method="fork", load_format=load_format)
    link = tmp_path / "model"
    link.symlink_to(folder)
    assert load_model(str(link), device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        (None, 100),
        ({"rope_type": "dynamic", "factor": 4.0}, 100),
        ({"rope_type": "linear", "factor": 4.0}, 400),
        ({"rope_type": "yarn", "factor": 2.5}, 250),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50}, 200),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10}, 100),
        ({"rope_type": "linear", "factor": 1e38}, (1 << 31) - 1),
    ],
)
def test_a_scaling_says_how_long_texts_may_be(
    rope: dict[str, Any] | None, longest: int, tmp_path: Path
) -> None:
    path = save(tmp_path) / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    changes = {"max_position_embeddings": 100, "rope_parameters": rope, "rope_scaling": None}
    path.write_text(json.dumps({**values, **changes}), encoding="utf-8")
    assert read_config(str(tmp_path)).longest_text == longest
