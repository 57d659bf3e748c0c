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
