"""The linear layer of few tokens, in Triton's interpreter: exact, and the same in any company."""

from __future__ import annotations

import pytest
import torch

from tests.engine.support.model_kernels import (
    TOLERANCE,
    by_dtype,
    interpreted,
    random_tensor,
    relative_error,
)

pytest.importorskip("triton")


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
    x, weight = random_tensor(16, shape[1], dtype=dtype), random_tensor(*shape, dtype=dtype, seed=1)
    residual = random_tensor(16, shape[0], dtype=dtype, seed=2) if added else None

    out = linear(x, weight, residual, config=config)

    exact = x.double() @ weight.double().T
    exact = exact if residual is None else exact + residual.double()
    assert relative_error(out, exact) < TOLERANCE[dtype]
    for first, last in ((0, 1), (3, 8), (15, 16)):
        some = None if residual is None else residual[first:last]
        assert torch.equal(linear(x[first:last], weight, some, config=config), out[first:last])
    assert linear(x[:0], weight, config=config).shape == (0, shape[0])


@interpreted
@by_dtype
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 16])
@pytest.mark.parametrize("shape", [(48, 96), (50, 104), (1, 40)], ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_added_and_normed_from_parts_has_the_bits_of_one_after_the_other(
    name: str, shape: tuple[int, int], num_tokens: int, dtype: torch.dtype
) -> None:
    from sample_engine.model.kernels.linear import LinearConfig, linear, linear_parts
    from sample_engine.model.kernels.rms_norm import add_parts_rms_norm, rms_norm

    config = LinearConfig(**LINEARS[name])
    x = random_tensor(num_tokens, shape[1], dtype=dtype)
    weight, norm = random_tensor(*shape, dtype=dtype, seed=1), random_tensor(shape[0], dtype=dtype)
    residual = random_tensor(num_tokens, 3, shape[0], dtype=dtype, seed=2)[:, 1]

    parts = linear_parts(x, weight, config=config)
    total, normed = add_parts_rms_norm(residual, parts, norm, 1e-5)

    expected = linear(x, weight, residual, config=config)
    assert torch.equal(total, expected)
    assert torch.equal(normed, rms_norm(expected, norm, 1e-5))


@interpreted
@by_dtype
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 16])
@pytest.mark.parametrize("shape", [(96, 96), (50, 104), (2, 40), (34, 64)], ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_a_gated_layer_has_the_bits_of_the_layer_and_then_the_gate(
    name: str, shape: tuple[int, int], num_tokens: int, dtype: torch.dtype
) -> None:
    from sample_engine.model.kernels.linear import LinearConfig, linear, linear_gated
    from sample_engine.model.kernels.silu_and_mul import silu_and_mul

    config = LinearConfig(**LINEARS[name])
    x, weight = random_tensor(num_tokens, shape[1], dtype=dtype), random_tensor(*shape, dtype=dtype)

    out = linear_gated(x, weight, config=config)

    assert torch.equal(out, silu_and_mul(linear(x, weight, config=config)))
