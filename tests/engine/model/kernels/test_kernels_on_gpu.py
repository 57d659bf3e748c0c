"""The model's kernels on a GPU: compiled, in bfloat16, at large shapes, overlapping, in graphs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sample_engine.model import ops
from sample_engine.model.config import LlamaConfig
from sample_engine.model.kernels import reference as oracle
from sample_engine.model.llama import Llama
from tests.engine.support.model import SMALL, random_llama

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
NARROW = [torch.float16, torch.bfloat16]
# Those of a Llama-3-8B, of the tiny model, and odd ones.
SHAPES = [(6144, 4096), (28672, 4096), (4096, 14336), (320, 192), (257, 192), (100, 88), (37, 1000)]
MIDDLE = LlamaConfig(
    vocab_size=1000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
)
by_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
with_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["alone", "overlapping"])


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    rng = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=rng, device="cuda").to(dtype)


def _error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture
def overlap_is(monkeypatch: pytest.MonkeyPatch, overlap: bool) -> bool:
    from sample_engine.model.kernels import tuning

    if overlap and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels overlap on Hopper and later")
    monkeypatch.setattr(tuning, "OVERLAP", overlap)
    return overlap


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is left to torch fails."""
    for name in oracle.__all__:
        monkeypatch.delattr(oracle, name)


@by_dtype
@pytest.mark.usefixtures("overlap_is")
@with_overlap
@pytest.mark.parametrize("size", [4096, 192, 1000])
def test_small_kernels_are_exact(size: int, dtype: torch.dtype) -> None:
    x, delta, third = _random(3, 5, size, dtype=dtype).unbind()
    weight, gated = _random(size, dtype=dtype, seed=1), _random(5, 2 * size, dtype=dtype, seed=2)
    qkv = _random(5, 12, 40, dtype=dtype)
    q, k, _ = qkv.split((6, 3, 3), dim=1)
    positions = torch.tensor([0, 1, 900, 33, 5], device="cuda")

    with torch.inference_mode():
        total, normed = ops.add_rms_norm(x, delta, weight, 1e-5)
        alone = ops.rms_norm(total, weight, 1e-5)
        joined = ops.join_rms_norms((x, third, total), (weight, delta[0], weight), 1e-5)
        each = [ops.rms_norm(x, weight, 1e-5), ops.rms_norm(third, delta[0], 1e-5), alone]
        chosen = ops.greedy(gated, -7)
        cos, sin = ops.rope_angles(positions, 40, 10000.0)
        turned = ops.rotate(q, k, cos, sin)
        gate = ops.silu_and_mul(gated)

    wide = total.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.equal(total, x + delta)
    assert torch.equal(alone, normed)
    assert torch.equal(joined, torch.cat(each, dim=-1))
    assert torch.equal(chosen, oracle.greedy(gated.float(), -7))
    assert _error(normed, exact) < TOLERANCE[dtype]
    for found, right in zip((cos, sin), oracle.rope_angles(positions, 40, 10000.0), strict=True):
        torch.testing.assert_close(found, right, atol=5e-4, rtol=0)
    for found, right in zip(turned, oracle.rotate(q, k, cos, sin), strict=True):
        assert _error(found, right) < TOLERANCE[dtype]
    assert _error(gate, oracle.silu_and_mul(gated.double())) < TOLERANCE[dtype]


@pytest.mark.usefixtures("overlap_is", "no_torch")
@with_overlap
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_linear_layer_is_exact_and_a_token_gets_the_same_in_any_company(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight = _random(16, shape[1], dtype=dtype), _random(*shape, dtype=dtype, seed=1)
    residual = _random(16, shape[0], dtype=dtype, seed=2)

    with torch.inference_mode():
        out = ops.linear(x, weight)
        added = ops.linear(x, weight, residual)
        exact = x.double() @ weight.double().T
        assert _error(out, exact) < TOLERANCE[dtype]
        assert torch.equal(added, residual + out)
        for number in range(1, 16):
            some = ops.linear(x[:number], weight)
            assert torch.equal(some, out[:number])
            assert torch.equal(ops.linear(x[number : number + 1], weight), out[number : number + 1])


@pytest.mark.usefixtures("overlap_is", "no_torch")
@with_overlap
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_of_two_operations_have_the_bits_of_one_after_the_other(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, norm = _random(*shape, dtype=dtype, seed=1), _random(shape[0], dtype=dtype, seed=3)
    for number in (1, 5, 16):
        x, residual = (_random(number, n, dtype=dtype, seed=2) for n in reversed(shape))

        with torch.inference_mode():
            total, normed = ops.linear_added_and_normed(x, weight, residual, norm, 1e-5)
            expected = ops.linear(x, weight, residual)
            assert torch.equal(total, expected)
            assert torch.equal(normed, ops.rms_norm(expected, norm, 1e-5))
            if shape[0] % 2 == 0:
                both = ops.linear(x, weight)
                assert torch.equal(ops.linear_gated(x, weight), ops.silu_and_mul(both))


@pytest.mark.usefixtures("overlap_is", "no_torch")
@with_overlap
@pytest.mark.parametrize("size", [7, 300, 4097, 128_256])
def test_a_greedy_choice_is_torchs_and_rows_that_are_not_finite_are_told(size: int) -> None:
    logits = _random(33, size, dtype=torch.float32)
    logits[1], logits[2] = logits[1].round(), 0.0
    with torch.inference_mode():
        chosen, told = ops.greedy(logits, -7)
        assert torch.equal(chosen, logits.argmax(-1))
        assert torch.equal(told, chosen)
        assert torch.equal(ops.argmax(logits[:1]), chosen[:1])
        for row, number in ((0, torch.nan), (4, torch.inf), (32, -torch.inf)):
            logits[row, size // 2] = number
        found, told_then = ops.greedy(logits, -7)
    bad = torch.tensor([row in (0, 4, 32) for row in range(33)], device="cuda")
    assert torch.equal(told_then, torch.where(bad, -7, chosen))
    assert ((found >= 0) & (found < size)).all()


def _model(config: LlamaConfig, dtype: torch.dtype) -> Llama:
    model = random_llama(config)
    model.to("cuda", dtype)
    return model


def _pass(model: Llama, tokens: Tensor) -> Tensor:
    """The logits, with an attention that is cheap and mixes keys and values in."""
    group = model.config.num_attention_heads // model.config.num_key_value_heads

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q * 0.5 + (k + v).repeat_interleave(group, dim=1)

    with torch.inference_mode():
        hidden, _ = model(tokens, tokens + 100, attend)
        return model.compute_logits(hidden)


@pytest.mark.parametrize("config", [SMALL, MIDDLE], ids=["small", "middle"])
@pytest.mark.parametrize("num_tokens", [1, 4, 16, 33])
def test_a_model_says_with_kernels_what_it_says_in_float32(
    config: LlamaConfig, num_tokens: int
) -> None:
    model = _model(config, torch.float32)
    tokens = torch.arange(num_tokens, device="cuda") * 3
    expected = _pass(model.cpu(), tokens.cpu())

    found = _pass(model.to("cuda"), tokens)
    coarse = _pass(model.to(torch.bfloat16), tokens)

    assert _error(found.cpu(), expected) < 1e-3  # TF32 may be on
    assert _error(coarse.cpu(), expected) < 5e-2


def test_overlapping_kernels_in_a_graph_never_race(monkeypatch: pytest.MonkeyPatch) -> None:
    from sample_engine.model.kernels import tuning

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels overlap on Hopper and later")
    model = _model(MIDDLE, torch.bfloat16)
    tokens = torch.arange(4, device="cuda")
    monkeypatch.setattr(tuning, "OVERLAP", False)
    expected = {start: _pass(model, tokens + start) for start in (0, 50, 700)}
    monkeypatch.setattr(tuning, "OVERLAP", True)
    given = tokens.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _pass(model, given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = _pass(model, given)

    for _ in range(30):
        for start, right in expected.items():
            given.copy_(tokens + start)
            graph.replay()
            assert torch.equal(logits, right)


def test_gradients_are_those_of_torch() -> None:
    config = dataclasses.replace(SMALL, tie_word_embeddings=False)
    model = random_llama(config)
    model.to("cuda").requires_grad_(True)
    tokens = torch.arange(5, device="cuda")

    hidden, _ = model(tokens, tokens, lambda layer, q, k, v: q)
    model.compute_logits(hidden).logsumexp(-1).sum().backward()

    grads = [weight.grad for weight in model.parameters()]
    model.cpu().zero_grad()
    hidden, _ = model(tokens.cpu(), tokens.cpu(), lambda layer, q, k, v: q)
    model.compute_logits(hidden).logsumexp(-1).sum().backward()
    for weight, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(grad.cpu(), weight.grad, atol=1e-3, rtol=1e-2)
