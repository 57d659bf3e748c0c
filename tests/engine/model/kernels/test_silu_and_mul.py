"""The gate against torch in float64, in Triton's interpreter, on odd shapes."""

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


@interpreted
@by_dtype
@pytest.mark.parametrize("size", [1, 40, 1500])
def test_the_gate_is_applied(size: int, dtype: torch.dtype) -> None:
    from sample_engine.model.kernels.silu_and_mul import silu_and_mul

    x = random_tensor(3, 2 * size, dtype=dtype) * 5

    gate, up = x.double().chunk(2, dim=-1)
    exact = gate / (1 + (-gate).exp()) * up
    assert relative_error(silu_and_mul(x), exact) < TOLERANCE[dtype]
