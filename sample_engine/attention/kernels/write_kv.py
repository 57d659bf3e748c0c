"""The kernels that put the keys and values of a step into the paged cache.

The slot of a token says where it goes, whichever request it belongs to. What becomes of a row in an
FP8 cache is in ``fp8_cache``; it is worked out here by the bits of float32, so that every device
and the interpreter write the same bytes.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.attention.kernels.fp8_cache import is_fp8
from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs

__all__ = ["write_kv"]


@jit
def _write_kv_kernel(
    key_ptr: tl.tensor,  # [T', K, D]
    value_ptr: tl.tensor,  # [T', K, D]
    key_cache_ptr: tl.tensor,  # [B, P, K, D]
    value_cache_ptr: tl.tensor,  # [B, P, K, D]
    slot_ptr: tl.tensor,  # [T'] int64
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    wait_for_inputs(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        at = tl.arange(0, WIDTH_PAD)
        ok = at < WIDTH
        place = (slot // PAGE) * block_stride + (slot % PAGE) * token_stride
        key = tl.load(key_ptr + token * key_stride + at, mask=ok)
        value = tl.load(value_ptr + token * value_stride + at, mask=ok)
        tl.store(key_cache_ptr + place + at, key, mask=ok)
        tl.store(value_cache_ptr + place + at, value, mask=ok)


@jit
def _codes_of(
    size: tl.tensor,  # float32, from 0 to 448
) -> tl.tensor:
    """The FP8 codes of numbers without sign, rounded to the nearest, halves to the even one."""
    bits = size.to(tl.int32, bitcast=True)
    # Without the last 20 bits of the mantissa, the exponent biased by 7 and no more by 127.
    code = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below the least normal number: multiples of 2**-9, which is the last bit of 2**14.
    small = (size + 16384.0).to(tl.int32, bitcast=True) & 15
    return tl.where(size < 0.015625, small, code)


@jit
def _write_rows(
    new_ptr: tl.tensor,  # [K, D]: of one token
    block_ptr: tl.tensor,  # [P * K * (D + 1)] uint8
    offset: tl.tensor,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
) -> None:
    """Write the codes of a token's rows, and the bytes of their scales."""
    heads = tl.arange(0, HEADS_PAD)
    dims = tl.arange(0, HEAD_PAD)[None, :]
    at = heads[:, None] * HEAD_DIM + dims
    mask = (heads < HEADS)[:, None] & (dims < HEAD_DIM)
    rows = tl.load(new_ptr + at, mask=mask, other=0.0).to(tl.float32)
    size = tl.abs(rows)
    bits = tl.max(tl.where(size < float("inf"), size, float("inf")), 1).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)
    exponent = tl.maximum(exponent, 1)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    finite = bits < 0x7F800000
    sign = (rows.to(tl.int32, bitcast=True) >> 24) & 0x80
    codes = tl.where(finite[:, None], _codes_of(size * inverse[:, None]) | sign, 0)
    tl.store(block_ptr + offset * HEADS * HEAD_DIM + at, codes.to(tl.uint8), mask=mask)
    scales_ptr = block_ptr + PAGE * HEADS * HEAD_DIM + offset * HEADS
    stored = tl.where(finite, exponent, 255).to(tl.uint8)
    tl.store(scales_ptr + heads, stored, mask=heads < HEADS)


@jit
def _write_fp8_kernel(
    key_ptr: tl.tensor,  # [T', K, D]
    value_ptr: tl.tensor,  # [T', K, D]
    key_cache_ptr: tl.tensor,  # [B, P, K, D] uint8
    value_cache_ptr: tl.tensor,  # [B, P, K, D] uint8
    slot_ptr: tl.tensor,  # [T'] int64
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    block_stride: tl.tensor,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    wait_for_inputs(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        start, offset = (slot // PAGE) * block_stride, slot % PAGE
        _write_rows(
            key_ptr + token * key_stride, key_cache_ptr + start, offset, HEADS, HEADS_PAD, HEAD_DIM,
            HEAD_PAD, PAGE,
        )  # fmt: skip
        _write_rows(
            value_ptr + token * value_stride, value_cache_ptr + start, offset, HEADS, HEADS_PAD,
            HEAD_DIM, HEAD_PAD, PAGE,
        )  # fmt: skip


def write_kv(
    key: torch.Tensor,  # [T', K, D]
    value: torch.Tensor,  # [T', K, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    slot_mapping: torch.Tensor,  # [T'] int64
    *,
    overlap: bool = False,
) -> None:
    """Write keys and values to their slots; a negative slot (``PAD_SLOT_ID``) is skipped."""
    num_tokens = slot_mapping.shape[0]
    if num_tokens == 0:
        return
    heads, dim = key.shape[1:]
    page = key_cache.shape[1]
    data = (key, value, key_cache, value_cache, slot_mapping, key.stride(0), value.stride(0))
    if is_fp8(key_cache):
        _write_fp8_kernel[(num_tokens,)](
            *data,
            key_cache.stride(0),
            HEADS=heads,
            HEADS_PAD=next_power_of_2(heads),
            HEAD_DIM=dim,
            HEAD_PAD=next_power_of_2(dim),
            PAGE=page,
            OVERLAP=overlap,
            num_warps=4,
            launch_pdl=overlap,
        )
        return
    _write_kv_kernel[(num_tokens,)](
        *data,
        key_cache.stride(0),
        key_cache.stride(1),
        WIDTH=heads * dim,
        WIDTH_PAD=next_power_of_2(heads * dim),
        PAGE=page,
        OVERLAP=overlap,
        num_warps=4,
        launch_pdl=overlap,
    )
