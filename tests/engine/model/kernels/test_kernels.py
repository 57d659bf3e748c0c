"""Tests of the model's kernels in Triton's interpreter: against torch in float64, on odd shapes.

bfloat16 is not here: the interpreter gets it wrong without a word; test_kernels_on_gpu.py has
it, and what overlaps.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sample_engine.model import ops
from sample_engine.model.kernels import reference as oracle
from tests.engine.support.model import SMALL, packed_attend, random_llama

pytest.importorskip("triton")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
by_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
interpreted = pytest.mark.usefixtures("interpreter")


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


@interpreted
@by_dtype
@pytest.mark.parametrize("size", [1, 40, 192, 1000])
def test_tokens_are_normed_with_and_without_what_a_layer_adds(
    size: int, dtype: torch.dtype
) -> None:
    from sample_engine.model.kernels import rms_norm as kernels

    wide = _random(5, 3, size, dtype=dtype)
    x, delta, weight = wide[:, 0], wide[:, 2], _random(size, dtype=dtype, seed=1)

    normed = kernels.rms_norm(x, weight, 1e-3)
    total, normed_sum = kernels.add_rms_norm(x, delta, weight, 1e-3)

    def exactly(tokens: Tensor) -> Tensor:
        scale = tokens.double().pow(2).mean(-1, keepdim=True) + 1e-3
        return tokens.double() / scale.sqrt() * weight.double()

    assert torch.equal(total, x + delta)
    assert _error(normed, exactly(x)) < TOLERANCE[dtype]
    assert _error(normed_sum, exactly(total)) < TOLERANCE[dtype]


@interpreted
@pytest.mark.parametrize("dim", [8, 40, 128])
def test_angles_are_those_of_torch(dim: int) -> None:
    from sample_engine.model.kernels import rotate as kernels

    positions = torch.tensor([0, 1, 77, 2047, 8191])

    cos, sin = kernels.rope_angles(positions, dim, 500000.0)

    pairs = torch.arange(dim // 2).double() / (dim // 2)
    angles = positions[:, None, None].double() * 500000.0**-pairs
    assert cos.shape == sin.shape == (5, 1, dim // 2)
    for found, exact in ((cos, angles.cos()), (sin, angles.sin())):
        torch.testing.assert_close(found.double(), exact, atol=5e-4, rtol=0)
        torch.testing.assert_close(found[:3].double(), exact[:3], atol=5e-6, rtol=0)


@interpreted
@by_dtype
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 32), (3, 3, 40), (32, 8, 16)])
def test_queries_and_keys_are_turned_as_they_lie_in_the_projection(
    heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> None:
    from sample_engine.model.kernels import rotate as kernels

    qkv = _random(4, heads + 2 * kv_heads, dim, dtype=dtype)
    q, k, _ = qkv.split((heads, kv_heads, kv_heads), dim=1)
    before = qkv.clone()
    cos, sin = oracle.rope_angles(torch.tensor([3, 0, 100, 7]), dim, 10000.0)

    turned = kernels.rotate(q, k, cos, sin)

    for found, each in zip(turned, (q, k), strict=True):
        first, second = each.double().chunk(2, dim=-1)
        exact = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        assert found.is_contiguous()
        assert _error(found, exact) < TOLERANCE[dtype]
    assert torch.equal(qkv, before)


@interpreted
@by_dtype
@pytest.mark.parametrize("size", [1, 40, 1500])
def test_the_gate_is_applied(size: int, dtype: torch.dtype) -> None:
    from sample_engine.model.kernels.silu_and_mul import silu_and_mul

    x = _random(3, 2 * size, dtype=dtype) * 5

    gate, up = x.double().chunk(2, dim=-1)
    exact = gate / (1 + (-gate).exp()) * up
    assert _error(silu_and_mul(x), exact) < TOLERANCE[dtype]


LINEARS = {
    "plain": {"block_n": 16, "block_k": 32},
    "two parts": {"block_n": 16, "block_k": 32, "split": 2},
    "more parts than there is work": {"block_n": 16, "block_k": 32, "split": 9},
}


@interpreted
@by_dtype
@pytest.mark.parametrize("added", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("shape", [(48, 96), (50, 104), (1, 40)], ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_a_linear_layer_is_exact_and_a_token_gets_the_same_in_any_company(
    name: str, shape: tuple[int, int], added: bool, dtype: torch.dtype
) -> None:
    from sample_engine.model.kernels.linear import LinearConfig, linear

    config = LinearConfig(**LINEARS[name])
    x, weight = _random(16, shape[1], dtype=dtype), _random(*shape, dtype=dtype, seed=1)
    residual = _random(16, shape[0], dtype=dtype, seed=2) if added else None

    out = linear(x, weight, residual, config=config)

    exact = x.double() @ weight.double().T
    exact = exact if residual is None else exact + residual.double()
    assert _error(out, exact) < TOLERANCE[dtype]
    for first, last in ((0, 1), (3, 8), (15, 16)):
        some = None if residual is None else residual[first:last]
        assert torch.equal(linear(x[first:last], weight, some, config=config), out[first:last])
    assert linear(x[:0], weight, config=config).shape == (0, shape[0])


def test_torch_computes_on_a_cpu_what_it_always_did() -> None:
    x, delta = _random(2, 5, 40).unbind()
    weight, wide = _random(40, seed=1), _random(24, 40, seed=2)
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    assert torch.equal(ops.rms_norm(x, weight, 1e-5), normed)
    total, of_sum = ops.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, x + delta)
    assert torch.equal(of_sum, ops.rms_norm(x + delta, weight, 1e-5))
    assert torch.equal(ops.linear(x, wide), torch.nn.functional.linear(x, wide))
    assert torch.equal(ops.linear(x, wide, x[:, :24]), x[:, :24] + ops.linear(x, wide))
    gate, up = x.chunk(2, dim=-1)
    assert torch.equal(ops.silu_and_mul(x), torch.nn.functional.silu(gate) * up)


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
