"""The kernels of RoPE: the angles of a pass, and the rotation of queries and keys by them.

Angles are float32 as torch's are; only the frequencies are worked out in float64.
"""

from __future__ import annotations

import math

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs

__all__ = ["rope_angles", "rotate"]

_HEADS = 8  # of a program


@jit
def _rope_angles_kernel(
    position_ptr: tl.tensor,  # [T] int64
    cos_ptr: tl.tensor,  # [T, 1, D / 2] float32
    sin_ptr: tl.tensor,  # [T, 1, D / 2] float32
    PER_PAIR: tl.constexpr,  # how much the logarithm to base 2 of the frequency falls, in float64
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, HALF_PAD)
    wait_for_inputs(OVERLAP)
    position = tl.load(position_ptr + token).to(tl.float32)
    frequency = tl.exp2(pairs.to(tl.float64) * -PER_PAIR).to(tl.float32)
    angle = position * frequency
    ok = pairs < HALF
    tl.store(cos_ptr + token * HALF + pairs, tl.cos(angle), mask=ok)
    tl.store(sin_ptr + token * HALF + pairs, tl.sin(angle), mask=ok)


def rope_angles(
    positions: torch.Tensor,  # [T] int64
    head_dim: int,
    theta: float,
    *,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # [T, 1, D / 2] float32 each
    """Cosine and sine of the rotation of each position."""
    half = head_dim // 2
    shape = (2, positions.shape[0], 1, half)
    angles = torch.empty(shape, dtype=torch.float32, device=positions.device)
    cos, sin = angles.unbind()
    if positions.shape[0]:
        _rope_angles_kernel[(positions.shape[0],)](
            positions.contiguous(),
            cos,
            sin,
            PER_PAIR=math.log2(theta) / half,
            HALF=half,
            HALF_PAD=next_power_of_2(half),
            OVERLAP=overlap,
            num_warps=1,
            launch_pdl=overlap,
        )
    return cos, sin


@jit
def _rotate_kernel(
    query_ptr: tl.tensor,  # [T, H, D]
    key_ptr: tl.tensor,  # [T, K, D]
    cos_ptr: tl.tensor,  # [T, 1, D / 2]
    sin_ptr: tl.tensor,  # [T, 1, D / 2]
    query_out_ptr: tl.tensor,  # [T, H, D]
    key_out_ptr: tl.tensor,  # [T, K, D]
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    num_heads: tl.tensor,
    num_kv_heads: tl.tensor,
    query_programs: tl.tensor,  # of a token; the others take its keys
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    count = num_heads
    source = query_ptr + token * query_stride
    target = query_out_ptr + token * num_heads * (2 * HALF)
    if group >= query_programs:
        group -= query_programs
        count = num_kv_heads
        source = key_ptr + token * key_stride
        target = key_out_ptr + token * num_kv_heads * (2 * HALF)
    pairs = tl.arange(0, HALF_PAD)[None, :]
    heads = group * HEADS + tl.arange(0, HEADS)[:, None]
    at = heads * (2 * HALF) + pairs
    ok = (heads < count) & (pairs < HALF)
    wait_for_inputs(OVERLAP)
    cos = tl.load(cos_ptr + token * HALF + pairs, mask=pairs < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + pairs, mask=pairs < HALF, other=0.0)
    first = tl.load(source + at, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + at, mask=ok, other=0.0).to(tl.float32)
    dtype = query_out_ptr.dtype.element_ty
    tl.store(target + at, (first * cos - second * sin).to(dtype), mask=ok)
    tl.store(target + HALF + at, (second * cos + first * sin).to(dtype), mask=ok)


def rotate(
    query: torch.Tensor,  # [T, H, D]
    key: torch.Tensor,  # [T, K, D]
    cos: torch.Tensor,  # [T, 1, D / 2] float32
    sin: torch.Tensor,  # [T, 1, D / 2] float32
    *,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # [T, H, D], [T, K, D]
    """Queries and keys with the pairs ``(x[i], x[i + D / 2])`` turned."""
    num_tokens, num_heads, dim = query.shape
    num_kv_heads = key.shape[1]
    outs = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (query, key)]
    for each in (query, key):
        assert each.stride()[1:] == (dim, 1), "heads of a token have to be contiguous"
    if num_tokens:
        query_programs = -(-num_heads // _HEADS)
        _rotate_kernel[(num_tokens, query_programs - (-num_kv_heads // _HEADS))](
            query,
            key,
            cos,
            sin,
            *outs,
            query.stride(0),
            key.stride(0),
            num_heads,
            num_kv_heads,
            query_programs,
            HEADS=_HEADS,
            HALF=dim // 2,
            HALF_PAD=next_power_of_2(dim // 2),
            OVERLAP=overlap,
            num_warps=4,
            launch_pdl=overlap,
        )
    return outs[0], outs[1]
