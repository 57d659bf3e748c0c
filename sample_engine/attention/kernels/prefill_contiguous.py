"""The prefill kernel for keys and values that lie one after the other.

``prefill_paged`` is for those in pages. The queries of a request are the last of its positions,
so keys may be more than queries.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from sample_engine.attention.kernels.common import (
    LOG2_E,
    absorb,
    dot_precision,
    head_pad,
    load_tile,
)
from sample_engine.attention.kernels.prefill import (
    PrefillConfig,
    check_rows,
    load_queries,
    locate,
    no_sums,
    prefill_grid,
    store_rows,
)
from sample_engine.kernels.common import jit

__all__ = ["prefill_contiguous"]


@jit
def _sweep(
    query: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    key: tl.tensor,  # pointer to the sequence's first key of this head, or a descriptor of all keys
    value: tl.tensor,
    acc: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    limit: tl.tensor,  # [BLOCK_M]: the last position that each row sees
    start: tl.tensor,
    stop: tl.tensor,
    num_keys: tl.tensor,
    first_key: tl.tensor,
    column: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """Take the keys from ``start`` to ``stop`` into the sums."""
    offsets = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_PAD)[None, :]
    for first in tl.range(start, stop, BLOCK_N):
        here = offsets + first
        if TMA:
            k = key.load([first_key + first, column])
        else:
            at = key + tl.cast(first, tl.int64) * key_stride
            tile = at + (offsets[:, None] * key_stride + dims)
            ok = here[:, None] < num_keys
            k = load_tile(tile, ok, dims, HEAD_DIM, HEAD_PAD, MASKED, "")
        scores = tl.dot(query, k.T, input_precision=PRECISION)
        if MASKED:
            scores = tl.where(here[None, :] <= limit[:, None], scores, float("-inf"))
        weights, acc, total, peak = absorb(scores, acc, total, peak, scale, False)
        if TMA:
            v = value.load([first_key + first, column])
            if MASKED:  # beyond the last key lies another sequence's value
                v = tl.where(here[:, None] < num_keys, v, 0.0)
        else:
            at = value + tl.cast(first, tl.int64) * value_stride
            tile = at + (offsets[:, None] * value_stride + dims)
            ok = here[:, None] < num_keys
            v = load_tile(tile, ok, dims, HEAD_DIM, HEAD_PAD, MASKED, "")
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, peak


@jit
def _prefill_contiguous_kernel(
    query_ptr: tl.tensor,  # [T, H, D]
    key: tl.tensor,  # pointer to [S, K, D], or a descriptor of it as [S, K * D]
    value: tl.tensor,
    out_ptr: tl.tensor,  # [T, H, D]
    query_start_ptr: tl.tensor,  # [R + 1] int32
    kv_start_ptr: tl.tensor,  # [R + 1] int32
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    out_stride: tl.tensor,
    scale: tl.tensor,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILE_MAJOR: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    req, head, tile = locate(GROUP, PACK, TILE_MAJOR)
    token = tl.load(query_start_ptr + req)
    num_queries = tl.load(query_start_ptr + req + 1) - token
    row = tile * (BLOCK_M // PACK)
    if row >= num_queries:
        return
    first_key = tl.load(kv_start_ptr + req)
    num_keys = tl.load(kv_start_ptr + req + 1) - first_key
    seen = num_keys - num_queries + row  # the last position that the tile's first row sees
    query = load_queries(
        query_ptr, token, row, head, num_queries, query_stride, HEAD_DIM, HEAD_PAD, BLOCK_M, PACK
    )
    limit = seen + tl.arange(0, BLOCK_M) // PACK
    stop = tl.minimum(seen + BLOCK_M // PACK, num_keys)
    middle = (seen + 1) // BLOCK_N * BLOCK_N  # up to here all rows see all keys
    acc, total, peak = no_sums(BLOCK_M, HEAD_PAD)
    column = head // GROUP * HEAD_DIM
    if not TMA:
        key = key + first_key.to(tl.int64) * key_stride + column
        value = value + first_key.to(tl.int64) * value_stride + column
    acc, total, peak = _sweep(
        query, key, value, acc, total, peak, limit, 0, middle, num_keys, first_key, column,
        key_stride, value_stride, scale, HEAD_DIM, HEAD_PAD, BLOCK_N, False, TMA, PRECISION,
    )  # fmt: skip
    acc, total, peak = _sweep(
        query, key, value, acc, total, peak, limit, middle, stop, num_keys, first_key, column,
        key_stride, value_stride, scale, HEAD_DIM, HEAD_PAD, BLOCK_N, True, TMA, PRECISION,
    )  # fmt: skip
    store_rows(
        out_ptr, acc, total, token, row, head, num_queries, out_stride, HEAD_DIM, HEAD_PAD,
        BLOCK_M, PACK,
    )  # fmt: skip


def prefill_contiguous(
    query: torch.Tensor,  # [T, H, D]
    key: torch.Tensor,  # [S, K, D]: the sequences one after the other
    value: torch.Tensor,  # [S, K, D]
    query_start: torch.Tensor,  # [R + 1] int32
    kv_start: torch.Tensor,  # [R + 1] int32
    out: torch.Tensor,  # [T, H, D]
    scale: float,
    *,
    max_query_len: int,
    config: PrefillConfig,
) -> None:
    """Causal attention of packed sequences without pages."""
    for name, tensor in (("query", query), ("key", key), ("value", value), ("out", out)):
        check_rows(name, tensor)
    num_reqs = query_start.shape[0] - 1
    if not num_reqs or not max_query_len:
        return
    num_heads, dim = query.shape[1:]
    if config.variant == "hopper":
        from sample_engine.attention.kernels.hopper import hopper_contiguous

        hopper_contiguous(
            query, key, value, query_start, kv_start, out, scale, max_query_len=max_query_len,
            config=config,
        )  # fmt: skip
        return
    grid = prefill_grid(config, num_reqs, num_heads, key.shape[1], max_query_len)
    tma = config.variant == "descriptor"
    _prefill_contiguous_kernel[grid](
        query,
        rows_descriptor(key, config.block_n) if tma else key,
        rows_descriptor(value, config.block_n) if tma else value,
        out,
        query_start,
        kv_start,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        out.stride(0),
        scale * LOG2_E,
        GROUP=num_heads // key.shape[1],
        PACK=num_heads // key.shape[1] if config.pack_heads else 1,
        HEAD_DIM=dim,
        HEAD_PAD=head_pad(dim),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        TILE_MAJOR=config.tile_major,
        TMA=tma,
        PRECISION=dot_precision(query.dtype),
        **config.options,
    )


def rows_descriptor(
    tensor: torch.Tensor,  # [rows, heads, D]
    rows: int,
) -> Any:
    """A TMA descriptor of tiles of one head and so many rows.

    Raises :class:`ValueError` for a head size that is no power of two: the next head would be
    loaded with it.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    dim = tensor.shape[2]
    if dim & (dim - 1):
        raise ValueError(f"head_dim={dim} is no power of two: use variant='pointer'.")
    width = tensor.shape[1] * dim
    return TensorDescriptor(tensor, [tensor.shape[0], width], [tensor.stride(0), 1], [rows, dim])
