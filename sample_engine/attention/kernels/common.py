"""What the attention kernels share: one softmax step, loads of tiles, how they multiply."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2

__all__ = [
    "LOG2_E",
    "absorb",
    "dot_of_values",
    "dot_precision",
    "head_pad",
    "load_tile",
    "look_up",
    "places",
    "scales_of_rows",
    "split_length",
    "unpack_fp8",
]

# Scores are scaled by this on top of ``1 / sqrt(D)``, so that exp2 takes the place of exp.
LOG2_E = 1.4426950408889634


_LEAST_DOT = 16  # the least size that Triton multiplies on a GPU; its interpreter takes any


def head_pad(dim: int) -> int:
    """How wide the tiles of a kernel are that multiplies heads of this size."""
    return max(_LEAST_DOT, next_power_of_2(dim))


def dot_of_values(dtype: torch.dtype) -> Any:
    """The type in which weights times a row's scale meet FP8 values: float16 has not the range."""
    return {torch.bfloat16: tl.bfloat16}.get(dtype, tl.float32)


def dot_precision(dtype: torch.dtype) -> str:
    """How ``tl.dot`` has to multiply: TF32 is too coarse where the model asked for float32."""
    return "ieee" if dtype == torch.float32 else "tf32"


@jit
def split_length(
    num_keys: tl.tensor, num_splits: tl.tensor, split_len: tl.tensor, split_block: tl.tensor
) -> Any:
    """The keys of an item of a request: ``split_len``, or where that is 0 an equal share."""
    of_blocks = num_splits * split_block
    share = (num_keys + of_blocks - 1) // of_blocks * split_block
    return tl.where(split_len > 0, split_len, share)


@jit
def load_tile(
    pointers: tl.tensor,  # [ROWS, HEAD_PAD]
    rows_ok: tl.tensor,  # [ROWS, 1]
    dims: tl.tensor,  # [1, HEAD_PAD]
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    POLICY: tl.constexpr,
) -> Any:
    """Load a tile of rows; zeros outside of what is checked, so that no NaN comes in from there."""
    if CHECK_ROWS:
        if HEAD_DIM == HEAD_PAD:
            tile = tl.load(pointers, mask=rows_ok, other=0.0, eviction_policy=POLICY)
        else:
            ok = rows_ok & (dims < HEAD_DIM)
            tile = tl.load(pointers, mask=ok, other=0.0, eviction_policy=POLICY)
    elif HEAD_DIM == HEAD_PAD:
        tile = tl.load(pointers, eviction_policy=POLICY)
    else:
        tile = tl.load(pointers, mask=dims < HEAD_DIM, other=0.0, eviction_policy=POLICY)
    return tile


@jit
def look_up(
    table_ptr: tl.tensor,  # [max_blocks]: a request's row of the block table
    first: tl.tensor,
    offsets: tl.tensor,  # [BLOCK_N]
    stop: tl.tensor,
    PAGE: tl.constexpr,
    ONE_PAGE: tl.constexpr,
    CHECK: tl.constexpr,
) -> Any:
    """The block of a tile that lies in one page, or of each of its rows; past the end block 0."""
    at = first
    if not ONE_PAGE:
        at = first + offsets
    if CHECK:
        return tl.load(table_ptr + at // PAGE, mask=at < stop, other=0)
    return tl.load(table_ptr + at // PAGE)


@jit
def places(
    blocks: tl.tensor,
    first: tl.tensor,
    offsets: tl.tensor,  # [BLOCK_N]
    dims: tl.tensor,  # [1, HEAD_PAD]
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    PAGE: tl.constexpr,
    ONE_PAGE: tl.constexpr,
) -> Any:
    """Where a tile lies in the cache: [BLOCK_N, HEAD_PAD], in elements, 64 bits wide."""
    if ONE_PAGE:
        start = blocks.to(tl.int64) * block_stride + (first % PAGE) * token_stride
        return start + (offsets[:, None] * token_stride + dims)
    rows = blocks.to(tl.int64) * block_stride + ((first + offsets) % PAGE) * token_stride
    return rows[:, None] + dims


@jit
def scales_of_rows(
    key_ptr: tl.tensor,  # [B, P, K, D] uint8
    value_ptr: tl.tensor,
    blocks: tl.tensor,
    first: tl.tensor,
    offsets: tl.tensor,  # [BLOCK_N]
    stop: tl.tensor,
    head: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
) -> Any:
    """The scales of a tile's rows in an FP8 cache (see ``fp8_cache``): [BLOCK_N] float32, twice."""
    row = (first + offsets) % PAGE * (token_stride // HEAD_DIM) + head
    at = blocks.to(tl.int64) * block_stride + PAGE * token_stride + row
    ok = first + offsets < stop
    of_key = tl.load(key_ptr + at, mask=ok, other=0).to(tl.int32)
    of_value = tl.load(value_ptr + at, mask=ok, other=0).to(tl.int32)
    key_scales = (of_key << 23).to(tl.float32, bitcast=True)
    return key_scales, (of_value << 23).to(tl.float32, bitcast=True)


@jit
def unpack_fp8(
    tile: tl.tensor,  # uint8
    DTYPE: tl.constexpr,
) -> Any:
    """The numbers whose codes a tile holds, exactly."""
    return tile.to(tl.float8e4nv, bitcast=True).to(DTYPE)


@jit
def absorb(
    scores: tl.tensor,  # [BLOCK_M, BLOCK_N], not scaled, -inf where masked
    acc: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    total: tl.tensor,  # [BLOCK_M]
    peak: tl.tensor,  # [BLOCK_M], scaled
    scale: tl.tensor,
    MAY_BE_EMPTY: tl.constexpr,
) -> Any:
    """One step of the online softmax: weights of this block; the sums so far, scaled down to it.

    With ``MAY_BE_EMPTY`` a row may have had nothing but masked scores so far.
    """
    new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
    base = new_peak
    if MAY_BE_EMPTY:
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    return weights, acc, total, new_peak
