"""Tests of the Llama: against a plain one in float64, packed and single, and its positions."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.model import checkpoint
from sample_engine.model.ops import rope_angles
from tests.engine.support.model import SMALL, packed_attend, plain_llama, random_llama

SHAPES = {
    "grouped": SMALL,
    "untied": dataclasses.replace(SMALL, tie_word_embeddings=False),
    "one-kv-head": dataclasses.replace(SMALL, num_key_value_heads=1),
    "no-groups": dataclasses.replace(SMALL, num_attention_heads=2, num_key_value_heads=2),
    "one-layer": dataclasses.replace(SMALL, num_hidden_layers=1, rope_theta=500000.0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_agrees_with_a_plain_llama_in_float64(name: str) -> None:
    model = random_llama(SHAPES[name])
    tokens = torch.randint(257, (13,), generator=torch.Generator().manual_seed(1))

    hidden, aux = model(tokens, torch.arange(13), packed_attend([13]), range(len(model.layers)))

    plain_hidden, plain_streams, plain_logits = plain_llama(model, tokens.tolist())
    torch.testing.assert_close(hidden.double(), plain_hidden, atol=2e-5, rtol=2e-5)
    logits = model.compute_logits(hidden)
    torch.testing.assert_close(logits.double(), plain_logits, atol=2e-5, rtol=2e-5)
    for stream, plain_stream in zip(aux, plain_streams, strict=True):
        torch.testing.assert_close(stream.double(), plain_stream, atol=2e-5, rtol=2e-5)


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_packed_sequences_come_out_as_each_for_itself(lengths: list[int], seed: int) -> None:
    model = random_llama(seed=seed)
    tokens = torch.randint(257, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(length) for length in lengths])

    packed, _ = model(tokens, positions, packed_attend(lengths))

    singles = [
        model(piece, torch.arange(len(piece)), packed_attend([len(piece)]))[0]
        for piece in tokens.split(lengths)
    ]
    torch.testing.assert_close(packed, torch.cat(singles), atol=1e-5, rtol=1e-5)


def test_features_come_in_the_order_asked_for() -> None:
    model = random_llama()
    inputs = (torch.arange(5), torch.arange(5), packed_attend([5]))

    hidden, (last, first) = model(*inputs, [2, 0])
    _, (again_first,) = model(*inputs, [0])

    assert torch.equal(first, again_first)
    assert torch.equal(model.norm(last), hidden)
    assert not torch.equal(first, last)


@pytest.mark.parametrize("shift", [1, 100, 8000])
def test_only_distances_between_positions_matter(shift: int) -> None:
    model = random_llama()
    tokens, attend = torch.arange(40, 49), packed_attend([9])

    hidden, _ = model(tokens, torch.arange(9), attend)
    shifted, _ = model(tokens, torch.arange(9) + shift, attend)
    spread, _ = model(tokens, torch.arange(9) * 2, attend)

    # Angles are float32: at position 8000 they have three decimals less than at position 0.
    torch.testing.assert_close(shifted, hidden, atol=5e-3 if shift > 1000 else 1e-4, rtol=0)
    assert (spread - hidden).abs().max() > 0.02


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_angles_are_precise_up_to_long_positions(theta: float) -> None:
    positions = torch.tensor([0, 1, 77, 2047, 8191])

    cos, sin = rope_angles(positions, 128, theta)

    angles = positions[:, None].double() * theta ** (-torch.arange(64).double() / 64)
    assert cos.shape == sin.shape == (5, 1, 64)
    torch.testing.assert_close(cos[:, 0].double(), angles.cos(), atol=2e-3, rtol=0)
    torch.testing.assert_close(sin[:, 0].double(), angles.sin(), atol=2e-3, rtol=0)
    torch.testing.assert_close(cos[:3, 0].double(), angles[:3].cos(), atol=2e-5, rtol=0)


def test_in_bfloat16_it_keeps_its_dtypes_and_stays_close() -> None:
    model = random_llama()
    tokens, positions = torch.arange(60, 80), torch.arange(100, 120)
    wide = model.compute_logits(model(tokens, positions, packed_attend([20]))[0])

    model.to(torch.bfloat16)
    hidden, (stream,) = model(tokens, positions, packed_attend([20]), [1])
    logits = model.compute_logits(hidden)

    assert (hidden.dtype, stream.dtype) == (torch.bfloat16, torch.bfloat16)
    assert logits.dtype == torch.float32
    assert (logits - wide).abs().mean() < 0.03


def test_attention_gets_the_layer_and_unexpanded_heads() -> None:
    model = random_llama()
    seen = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((layer, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        return q

    model(torch.arange(4), torch.arange(4), attend)

    assert seen == [(layer, (4, 6, 8), (4, 2, 8), (4, 2, 8)) for layer in range(3)]


@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face_reads_our_files_and_agrees(tmp_path: Path, tied: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        config = dataclasses.replace(SMALL, tie_word_embeddings=tied)
        model = random_llama(config)
        values = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        text = json.dumps(values | dataclasses.asdict(config))
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        path = tmp_path / "model.safetensors"
        checkpoint.write(path, model, checkpoint.llama_parts(config, model), {})
        theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    model.to(torch.bfloat16).to(torch.float32)  # as it is in the file
    tokens = torch.arange(30, 50)

    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]

    hidden, _ = model(tokens, torch.arange(20), packed_attend([20]))
    torch.testing.assert_close(model.compute_logits(hidden), expected, atol=2e-4, rtol=1e-4)
