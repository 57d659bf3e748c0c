"""Angles and rotation against torch, in Triton's interpreter, on odd shapes."""

from __future__ import annotations

import pytest
import torch

from sample_engine.model.kernels import reference as oracle
from tests.engine.support.model_kernels import (
    TOLERANCE,
    by_dtype,
    interpreted,
    random_tensor,
    relative_error,
)

pytest.importorskip("triton")


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

    qkv = random_tensor(4, heads + 2 * kv_heads, dim, dtype=dtype)
    q, k, _ = qkv.split((heads, kv_heads, kv_heads), dim=1)
    before = qkv.clone()
    cos, sin = oracle.rope_angles(torch.tensor([3, 0, 100, 7]), dim, 10000.0)

    turned = kernels.rotate(q, k, cos, sin)

    for found, each in zip(turned, (q, k), strict=True):
        first, second = each.double().chunk(2, dim=-1)
        exact = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        assert found.is_contiguous()
        assert relative_error(found, exact) < TOLERANCE[dtype]
    assert torch.equal(qkv, before)
