"""A small random model, a plain loop that runs it without a cache, and cores that run it for real.

Everything is on the CPU in float32. The model's logits are far enough apart that rounding, which
differs between batches, does not change a greedy token: :func:`plain_tokens` sees to it.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sample_engine.attention.kernels.fp8_cache import dequantize, quantize
from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.engine_core import EngineCore
from sample_engine.model import checkpoint
from sample_engine.model.llama import Llama
from sample_engine.model.loading import load_eagle_head, load_model
from sample_engine.sampling import SamplingTensors, noise_keys, sample, seed_keys

VOCAB = 97
MODEL_LEN = 128
SHAPE = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MODEL_LEN,
    "tie_word_embeddings": False,
    "eos_token_id": None,
}
# Rounding moves logits by about 1e-6.
LEAST_MARGIN = 1e-4

COUNT = 12
GREEDY = SamplingParams(max_tokens=COUNT)
SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, seed=11, max_tokens=COUNT)


def prompts() -> dict[str, list[int]]:
    """Some that begin alike, and some that do not; lengths from one to several blocks."""
    chance = random.Random(5)
    common = chance.choices(range(VOCAB), k=19)
    found = {f"alike-{n}": common + chance.choices(range(VOCAB), k=n) for n in (0, 1, 5, 9)}
    for length in (1, 2, 4, 8, 15, 33):
        found[f"own-{length}"] = chance.choices(range(VOCAB), k=length)
    return found


PROMPTS = prompts()


def model_folder(path: Path, **changed: Any) -> str:
    """A folder with the model: its shape and its weights, which are random and always the same."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**SHAPE, **changed}), encoding="utf-8")
    model = load_model(str(path), load_format="dummy", device="cpu", dtype=torch.float32, seed=0)
    parts = checkpoint.llama_parts(model.config, model)
    checkpoint.write(path / "model.safetensors", model, parts, {})
    return str(path)


def add_head(folder: str) -> str:
    """Give a model a draft head, of random weights: it is never right but by chance."""
    head = load_eagle_head(folder, load_format="dummy", device="cpu", dtype=torch.float32, seed=1)
    path, parts = Path(folder) / "eagle.safetensors", checkpoint.plain_parts(head)
    checkpoint.write(path, head, parts, {"config": head.config.to_json()})
    return folder


@functools.cache
def plain_model(folder: str) -> Llama:
    """The model of a folder, for the plain loop."""
    return load_model(folder, device="cpu", dtype=torch.float32)


def config_of(folder: str, **settings: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "model": folder,
        "device": "cpu",
        "block_size": 4,
        "num_blocks": 200,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    }
    return EngineConfig(**{**values, **settings})


def make_core(folder: str, **settings: Any) -> EngineCore:
    return EngineCore(config_of(folder, **settings))


def run(
    core: EngineCore, most_steps: int = 5000
) -> tuple[dict[str, list[int]], dict[str, CoreOutput]]:
    """Step until all requests have ended: their tokens, and the last word on each."""
    tokens: dict[str, list[int]] = {}
    last: dict[str, CoreOutput] = {}
    for _ in range(most_steps):
        if not core.has_unfinished():
            return tokens, last
        for output in core.step():
            assert output.request_id not in last, "something came after the end"
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                last[output.request_id] = output
    raise AssertionError(f"not at an end after {most_steps} steps")


def generate(
    core: EngineCore, prompts: Mapping[str, Sequence[int]], params: SamplingParams
) -> dict[str, list[int]]:
    """The tokens that a core makes for prompts that arrive together."""
    for name, prompt in prompts.items():
        core.add_request(name, prompt, params)
    return run(core)[0]


def plain_logits(model: Llama, tokens: Sequence[int], *, fp8_cache: bool = False) -> torch.Tensor:
    """Logits after each token, of the whole text at once and without a cache: [T, vocabulary].

    With ``fp8_cache`` from keys and values that were rounded as if there were one.
    """

    def attend(
        layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        group = query.shape[1] // key.shape[1]
        if fp8_cache:
            key, value = (dequantize(*quantize(each)) for each in (key, value))
        key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value)

    hidden, _ = model(torch.tensor(tokens), torch.arange(len(tokens)), attend)
    return model.compute_logits(hidden)


def plain_tokens(
    folder: str,
    prompt: Sequence[int],
    count: int,
    params: SamplingParams | None = None,
    *,
    fp8_cache: bool = False,
) -> list[int]:
    """What a prompt has to be continued with: a loop that computes everything anew each time."""
    return list(_plain_tokens(folder, tuple(prompt), count, params, fp8_cache))


@functools.cache
def _plain_tokens(
    folder: str,
    prompt: tuple[int, ...],
    count: int,
    params: SamplingParams | None,
    fp8_cache: bool,
) -> tuple[int, ...]:
    model = plain_model(folder)
    text = list(prompt)
    for _ in range(count):
        logits = plain_logits(model, text, fp8_cache=fp8_cache)[-1:]
        if params is None or params.temperature == 0:
            best, second = logits[0].topk(2).values.tolist()
            assert best - second > LEAST_MARGIN, "choose another model: two tokens are too close"
            text.append(int(logits.argmax()))
        else:
            text.append(int(sample(logits, _how(params, len(text)))))
    return tuple(text[len(prompt) :])


def _how(params: SamplingParams, position: int) -> SamplingTensors:
    assert params.seed is not None, "without a seed there is nothing to compare"
    keys = noise_keys(seed_keys(torch.tensor([params.seed])), torch.tensor([position]))
    return SamplingTensors(
        temperature=torch.tensor([params.temperature]),
        top_k=torch.tensor([params.top_k]),
        top_p=torch.tensor([params.top_p]),
        keys=keys,
        filtered=bool(params.top_k or params.top_p < 1),
    )
