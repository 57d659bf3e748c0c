"""The norm of tokens against torch in float64, in Triton's interpreter, on odd shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.engine.support.model_kernels import (
    TOLERANCE,
    by_dtype,
    interpreted,
    random_tensor,
    relative_error,
)

pytest.importorskip("triton")


@interpreted
@by_dtype
@pytest.mark.parametrize("size", [1, 40, 192, 1000])
def test_tokens_are_normed_with_and_without_what_a_layer_adds(
    size: int, dtype: torch.dtype
) -> None:
    from sample_engine.model.kernels import rms_norm as kernels

    wide = random_tensor(5, 3, size, dtype=dtype)
    x, delta, weight = wide[:, 0], wide[:, 2], random_tensor(size, dtype=dtype, seed=1)

    normed = kernels.rms_norm(x, weight, 1e-3)
    total, normed_sum = kernels.add_rms_norm(x, delta, weight, 1e-3)

    def exactly(tokens: Tensor) -> Tensor:
        scale = tokens.double().pow(2).mean(-1, keepdim=True) + 1e-3
        return tokens.double() / scale.sqrt() * weight.double()

    assert torch.equal(total, x + delta)
    assert relative_error(normed, exactly(x)) < TOLERANCE[dtype]
    assert relative_error(normed_sum, exactly(total)) < TOLERANCE[dtype]


@interpreted
@by_dtype
@pytest.mark.parametrize("size", [1, 40, 1000])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_norms_side_by_side_are_those_of_each(count: int, size: int, dtype: torch.dtype) -> None:
    from sample_engine.model.kernels import rms_norm as kernels

    xs = random_tensor(5, 3, size, dtype=dtype).unbind(1)[:count]
    weights = random_tensor(3, size, dtype=dtype, seed=1).unbind()[:count]
    each = [kernels.rms_norm(x, weight, 1e-3) for x, weight in zip(xs, weights, strict=True)]
    assert torch.equal(kernels.join_rms_norms(xs, weights, 1e-3), torch.cat(each, dim=-1))
