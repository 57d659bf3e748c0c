"""Models as they are published: logits and greedy texts are those of ``transformers``."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

if importlib.util.find_spec("transformers") is None:  # imported where it is used: that takes long
    pytest.skip("models of transformers are compared with", allow_module_level=True)

from sample_engine import LLM, SamplingParams
from sample_engine.errors import ConfigError, WeightsError
from sample_engine.model.config_file import read_config
from sample_engine.model.loading import load_model
from sample_engine.model.rope import angles_of
from sample_engine.model_runner import ModelRunner
from tests.engine.support.model import packed_attend
from tests.engine.support.published import MODELS, SIZE, Published, made_of, published

MOST_DIFFERENCE = 1e-4
LENGTH = 70  # beyond all windows and original_max_position_embeddings


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Published]:
    """All of them, made once."""
    return dict(published(tmp_path_factory.mktemp("published")))


def text(length: int = LENGTH) -> list[int]:
    """Some tokens, other ones than those that end a text."""
    chance = random.Random(length)
    return [chance.randrange(12, SIZE["vocab_size"]) for _ in range(length)]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_texts_are_those_of_transformers(
    name: str, models: dict[str, Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = models[name]
    assert len(list(theirs.folder.glob("*.safetensors"))) > 1
    seen: list[torch.Tensor] = []
    compute = ModelRunner._logits

    def spy(*arguments: object) -> torch.Tensor:
        seen.append(compute(*arguments))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(ModelRunner, "_logits", spy)
    prompts = [text(), text(9)]
    engine = LLM(
        theirs.folder,
        device="cpu",
        worker_method="inproc",
        max_num_batched_tokens=64,  # the long one comes in two chunks
        num_blocks=40,
    )
    with engine as llm:
        params = SamplingParams(max_tokens=16)
        outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], params)
    ours = torch.cat(seen)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        assert tokens == theirs.greedy(prompt, 16)
        for right in theirs.logits([*prompt, *tokens])[len(prompt) - 1 : -1]:
            assert float((ours - right).abs().amax(-1).min()) < MOST_DIFFERENCE


def test_all_logits_of_a_text_are_those_of_transformers(models: dict[str, Published]) -> None:
    for name in ("llama", "llama3", "linear", "dynamic", "qwen2", "qwen3"):
        theirs = models[name]
        model = load_model(str(theirs.folder), device="cpu", dtype=torch.float32)
        with torch.inference_mode():
            positions = torch.arange(LENGTH)
            hidden, _ = model(torch.tensor(text()), positions, packed_attend([LENGTH]))
            ours = model.compute_logits(hidden)
        assert float((ours - theirs.logits(text())).abs().max()) < MOST_DIFFERENCE, name


_LONG = {"original_max_position_embeddings": 8192}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(
    ("rope", "beside", "difference"),
    [
        ({"rope_type": "default"}, {}, 0.0),
        ({"rope_type": "linear", "factor": 3.0}, {}, 0.0),
        ({"rope_type": "dynamic", "factor": 3.0}, {}, 0.0),
        ({"rope_type": "llama3", **_LLAMA3, **_LONG}, {}, 1e-4),
        ({"rope_type": "llama3", **_LLAMA3}, _LONG, 1e-4),
        ({"rope_type": "yarn", "factor": 4.0, **_LONG}, {}, 1e-4),
        ({"rope_type": "yarn", "factor": 4.0}, _LONG, 1e-4),
        ({"rope_type": "yarn", "factor": 4.0}, {}, 1e-4),
    ],
)
def test_angles_are_those_of_transformers_at_far_positions(
    rope: dict[str, Any],
    beside: dict[str, Any],
    difference: float,
    theta: float,
    tmp_path: Path,
) -> None:
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    size = {**SIZE, "head_dim": 128, "max_position_embeddings": 131072}
    theirs = transformers.LlamaConfig(**size, rope_parameters={**rope, "rope_theta": theta})
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = {**json.loads(path.read_text(encoding="utf-8")), **beside}
    values["rope_parameters"] = {**rope, "rope_theta": theta}
    path.write_text(json.dumps(values), encoding="utf-8")
    theirs = transformers.LlamaConfig.from_pretrained(tmp_path)
    positions = torch.tensor([0, 1, 77, 8191, 131071])
    with torch.no_grad():
        right = LlamaRotaryEmbedding(theirs)(torch.zeros(1), positions[None])
    for found, each in zip(angles_of(positions, read_config(str(tmp_path))), right, strict=True):
        torch.testing.assert_close(found[:, 0], each[0, :, :64], rtol=0, atol=difference)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_ends_a_text_is_known_where_a_configuration_leaves_it_out(
    name: str, models: dict[str, Published], tmp_path: Path
) -> None:
    import transformers

    path = models[name].folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    for given in (None, {"eos_token_id": None}, {"eos_token_id": 5}):
        values.pop("eos_token_id", None)
        changes = {**values, **(given or {})}
        (tmp_path / "config.json").write_text(json.dumps(changes), encoding="utf-8")
        theirs = transformers.AutoConfig.from_pretrained(tmp_path).eos_token_id
        assert read_config(str(tmp_path)).eos_token_id == theirs


@pytest.mark.parametrize(
    "rope", [{"rope_type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}]
)
def test_a_scaled_model_takes_the_texts_that_its_scaling_is_for(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    (theirs,) = made_of(tmp_path, {"scaled": ("Llama", {"rope_parameters": rope})})
    prompt = text(500)
    assert len(prompt) < 4 * SIZE["max_position_embeddings"] < len(prompt) + 16
    settings: dict[str, Any] = {"device": "cpu", "worker_method": "inproc", "num_blocks": 40}
    with LLM(theirs.folder, **settings) as llm:
        assert llm.info()["max_model_len"] == 512
        (output,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=16))
    assert list(output.token_ids) == theirs.greedy(prompt, 12)
    with pytest.raises(ConfigError, match=r"max_model_len=513 is more .* \(512, by its max_posit"):
        LLM(theirs.folder, max_model_len=513, **settings)


def changed(models: dict[str, Published], name: str, to: Path) -> Path:
    """A copy of a model's folder, to be changed, with all weights in one file."""
    folder = Path(shutil.copytree(models[name].folder, to / "changed"))
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors.update(load_file(path))
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path) -> object:
    return load_model(str(folder), device="cpu", dtype=torch.float32)


def test_a_stored_head_and_leftovers_are_no_harm(
    models: dict[str, Published], tmp_path: Path
) -> None:
    path = changed(models, "llama3", tmp_path) / "model.safetensors"  # its head is tied
    tensors = load_file(path)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, path)
    load(path.parent)
    tensors["lm_head.weight"][3, 4] += 1
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=r"lm_head\.weight that differs from model\.embed_tok"):
        load(path.parent)
    tensors["lm_head.weight"] = torch.zeros(2, 2)
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=r"lm_head\.weight has the shape \[2, 2\], not \[300, 3"):
        load(path.parent)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias", r"missing: .*k_proj\.bias"),
        ("qwen3", "model.layers.2.self_attn.q_norm.weight", r"missing: .*q_norm\.weight"),
        ("llama", "lm_head.weight", r"missing: lm_head\.weight"),
    ],
)
def test_what_a_family_needs_is_missed(
    name: str, tensor: str, words: str, models: dict[str, Published], tmp_path: Path
) -> None:
    path = changed(models, name, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    del tensors[tensor]
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=words):
        load(path.parent)


def test_eagle_is_refused_where_windows_count(models: dict[str, Published]) -> None:
    speculative = {"method": "eagle", "num_speculative_tokens": 2}
    settings: dict[str, Any] = {"device": "cpu", "worker_method": "inproc"}
    settings["load_format"] = "dummy"
    with pytest.raises(ConfigError, match="without a sliding window"):
        LLM(models["mistral"].folder, speculative_config=speculative, **settings)


def test_the_ends_of_a_text_are_those_of_the_generation(
    models: dict[str, Published], tmp_path: Path
) -> None:
    folder = changed(models, "llama", tmp_path)
    prompt = {"prompt_token_ids": text()}
    settings: dict[str, Any] = {"device": "cpu", "worker_method": "inproc", "num_blocks": 20}
    with LLM(folder, **settings) as llm:
        free = llm.generate(prompt, SamplingParams(max_tokens=6, ignore_eos=True))[0].outputs[0]
    ends = [299, free.token_ids[3]]
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")
    with LLM(folder, **settings) as llm:
        output = llm.generate(prompt, SamplingParams(max_tokens=6))[0].outputs[0]
    assert output.token_ids[-1] in ends
    assert output.token_ids == free.token_ids[: len(output.token_ids)]
    assert len(output.token_ids) <= 4
