"""How much an FP8 cache may lose: of a number, and of attention's result."""

from __future__ import annotations

import torch

from sample_engine.attention.kernels.fp8_cache import quantize
from tests.engine.support.attention import Batch

__all__ = ["most_lost", "most_lost_by_attention", "scales"]


def scales(exponents: torch.Tensor) -> torch.Tensor:
    """The scales that bytes stand for: [..., 1] float64."""
    return torch.exp2(exponents.double() - 127)[..., None]


def most_lost(rows: torch.Tensor) -> torch.Tensor:
    """What each number of rows [..., D] may lose: half a step of a mantissa of 3 bits.

    Below the least normal number, ``scale * 2**-6``, a step is ``scale * 2**-9``.
    """
    scale = scales(quantize(rows)[1])
    return torch.maximum(rows.double().abs() * 2**-4, scale * 2**-10)


def most_lost_by_attention(
    batch: Batch,
    keys: list[torch.Tensor],  # [L, K, D] each: before they were rounded
    values: list[torch.Tensor],
) -> torch.Tensor:  # [T, H, D]
    """How far attention over an FP8 cache may be from attention over what was written to it.

    A score moves by no more than ``e = max_j scale * sum_d |q_d| lost(k_jd)``, so a weight by no
    more than a factor of ``exp(2 e)`` either way; and each value by what it lost itself.
    """
    found, starts = [], batch.common.query_start_loc.tolist()
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        query = batch.query[starts[index] : starts[index + 1]].double()
        group, count, length = query.shape[1] // key.shape[1], len(query), len(key)
        scale = query.shape[-1] ** -0.5
        k, v, lost_k, lost_v = (
            each.double().repeat_interleave(group, 1)
            for each in (key, value, most_lost(key), most_lost(value))
        )
        seen = torch.ones(count, length, dtype=torch.bool).tril(length - count)[:, None]
        scores = torch.einsum("nhd,lhd->nhl", query, k) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        moved = torch.einsum("nhd,lhd->nhl", query.abs(), lost_k) * scale
        factor = (2 * moved.masked_fill(~seen, 0).amax(-1, keepdim=True)).exp()
        found.append(
            (factor - 1) * torch.einsum("nhl,lhd->nhd", weights, v.abs())
            + factor * torch.einsum("nhl,lhd->nhd", weights, lost_v)
        )
    return torch.cat(found)
