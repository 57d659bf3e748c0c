"""The operations of a layer where torch computes them: on a CPU, and where gradients are wanted."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sample_engine.model import ops
from tests.engine.support.model import SMALL, packed_attend, random_llama
from tests.engine.support.model_kernels import (
    random_tensor,
)

pytest.importorskip("triton")


def test_torch_computes_on_a_cpu_what_it_always_did() -> None:
    x, delta = random_tensor(2, 5, 40).unbind()
    weight, wide = random_tensor(40, seed=1), random_tensor(24, 40, seed=2)
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    assert torch.equal(ops.rms_norm(x, weight, 1e-5), normed)
    total, of_sum = ops.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, x + delta)
    assert torch.equal(of_sum, ops.rms_norm(x + delta, weight, 1e-5))
    assert torch.equal(ops.linear(x, wide), torch.nn.functional.linear(x, wide))
    assert torch.equal(ops.linear(x, wide, x[:, :24]), x[:, :24] + ops.linear(x, wide))
    gate, up = x.chunk(2, dim=-1)
    assert torch.equal(ops.silu_and_mul(x), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turned", [8, 6])
@pytest.mark.parametrize("tokens", [1, 6])
def test_queries_and_keys_are_turned_together_as_one_by_one(
    tokens: int, turned: int, dtype: torch.dtype
) -> None:
    packed = random_tensor(tokens, 10, 8).to(dtype)
    cos, sin = ops.rope_angles(torch.arange(3, 3 + tokens), turned, 10000.0)
    query, key, value = packed.split((6, 2, 2), dim=1)
    expected = (*ops.rotate(query, key, cos, sin), value)
    with torch.inference_mode():
        found = ops.rotate_packed(packed, (6, 2, 2), cos, sin)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_reach_all_weights_and_inference_gives_the_same(tied: bool) -> None:
    model = random_llama(dataclasses.replace(SMALL, tie_word_embeddings=tied))
    tokens, positions = torch.arange(7), torch.arange(7)
    model.requires_grad_(True)
    model.train()

    hidden, _ = model(tokens, positions, packed_attend([7]))
    logits = model.compute_logits(hidden)
    logits.logsumexp(-1).sum().backward()
    model.eval()
    with torch.inference_mode():
        again = model.compute_logits(model(tokens, positions, packed_attend([7]))[0])

    assert all(weight.grad is not None for weight in model.parameters())
    assert torch.equal(logits, again)


def test_a_hook_of_training_sees_what_each_layer_adds() -> None:
    model = random_llama()
    seen: list[Tensor] = []
    model.train()
    tokens = torch.arange(7)

    def nothing(_: object, __: object, out: Tensor) -> Tensor:
        seen.append(out)
        return torch.zeros_like(out)

    model.layers[0].mlp.down_proj.register_forward_hook(nothing)
    model.layers[0].self_attn.o_proj.register_forward_hook(nothing)

    _, (stream,) = model(tokens, tokens, packed_attend([7]), [0])

    assert len(seen) == 2
    assert torch.equal(stream, model.embed_tokens(tokens))
