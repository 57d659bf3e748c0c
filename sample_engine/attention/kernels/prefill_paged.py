"""The prefill kernel over the paged cache: prefill, chunks of it, verification of drafts.

The queries of a request are the last of its positions. Nothing is split: one program reads all
keys of its rows (``decode_paged`` is for few queries).

Where a page holds a multiple of BLOCK_N tokens, a tile lies in one page and one look-up finds it;
else each row of a tile looks its page up. Addresses in the cache are 64 bits wide.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from sample_engine.attention.kernels.common import (
    LOG2_E,
    absorb,
    dot_of_values,
    dot_precision,
    head_pad,
    load_tile,
    look_up,
    places,
    scales_of_rows,
    unpack_fp8,
)
from sample_engine.attention.kernels.fp8_cache import is_fp8
from sample_engine.attention.kernels.prefill import (
    PrefillConfig,
    check_rows,
    load_queries,
    locate,
    no_sums,
    prefill_grid,
    store_rows,
)
from sample_engine.attention.kernels.prefill_contiguous import rows_descriptor
from sample_engine.kernels.common import jit

__all__ = ["prefill_paged"]


@jit
def _sweep_pages(
    query: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    key: tl.tensor,  # pointer to the cache, or a descriptor of [B * P, K * D]
    value: tl.tensor,
    table_ptr: tl.tensor,  # [max_blocks]: this request's row
    acc: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    limit: tl.tensor,  # [BLOCK_M]: the last position that each row sees
    start: tl.tensor,
    stop: tl.tensor,
    num_keys: tl.tensor,
    head: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
    TMA: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    FP8: tl.constexpr,
    MIX: tl.constexpr,
) -> Any:
    """Take the keys from ``start`` to ``stop`` into the sums."""
    offsets, dims = tl.arange(0, BLOCK_N), tl.arange(0, HEAD_PAD)[None, :]
    ONE_PAGE: tl.constexpr = PAGE % BLOCK_N == 0
    column = head * HEAD_DIM
    if not TMA:
        keys, values = key + column, value + column
    if AHEAD:
        blocks = look_up(table_ptr, start, offsets, num_keys, PAGE, ONE_PAGE, True)
    for first in tl.range(start, stop, BLOCK_N):
        here = first + offsets
        ok = here[:, None] < num_keys
        if not AHEAD:
            blocks = look_up(table_ptr, first, offsets, num_keys, PAGE, ONE_PAGE, MASKED)
        if TMA:
            line = (blocks * PAGE + first % PAGE).to(tl.int32)
        else:
            at = places(blocks, first, offsets, dims, block_stride, token_stride, PAGE, ONE_PAGE)
        if FP8:
            key_scales, value_scales = scales_of_rows(
                key, value, blocks, first, offsets, num_keys, head, block_stride, token_stride,
                HEAD_DIM, PAGE,
            )  # fmt: skip
        if AHEAD:
            blocks = look_up(table_ptr, first + BLOCK_N, offsets, num_keys, PAGE, ONE_PAGE, True)
        if TMA:
            k = key.load([line, column])
        else:
            k = load_tile(keys + at, ok, dims, HEAD_DIM, HEAD_PAD, MASKED, "")
        if FP8:
            k = unpack_fp8(k, query.dtype)
        scores = tl.dot(query, k.T, input_precision=PRECISION)
        if FP8:
            scores *= key_scales[None, :]
        if MASKED:
            scores = tl.where(here[None, :] <= limit[:, None], scores, float("-inf"))
        weights, acc, total, peak = absorb(scores, acc, total, peak, scale, False)
        if TMA:
            v = value.load([line, column])
            if MASKED:  # what was never written may be NaN
                v = tl.where(ok, v, 0.0)
        else:
            v = load_tile(values + at, ok, dims, HEAD_DIM, HEAD_PAD, MASKED, "")
        if FP8:
            weights *= value_scales[None, :]
            v = unpack_fp8(v, MIX)
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, peak


@jit
def _prefill_paged_kernel(
    query_ptr: tl.tensor,  # [T', H, D]
    key: tl.tensor,  # pointer to [B, P, K, D], or a descriptor of it as [B * P, K * D]
    value: tl.tensor,
    block_table_ptr: tl.tensor,  # [R', max_blocks] int32
    query_start_ptr: tl.tensor,  # [R' + 1] int32
    seq_len_ptr: tl.tensor,  # [R'] int32
    out_ptr: tl.tensor,  # [T', H, D]
    query_stride: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    table_stride: tl.tensor,
    out_stride: tl.tensor,
    scale: tl.tensor,
    skip_query_len: tl.tensor,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    TILE_MAJOR: tl.constexpr,
    TMA: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    FP8: tl.constexpr,
    MIX: tl.constexpr,
) -> None:
    req, head, tile = locate(GROUP, PACK, TILE_MAJOR)
    token = tl.load(query_start_ptr + req)
    num_queries = tl.load(query_start_ptr + req + 1) - token
    row = tile * (BLOCK_M // PACK)
    if (row >= num_queries) | (num_queries <= skip_query_len):
        return
    num_keys = tl.load(seq_len_ptr + req)
    seen = num_keys - num_queries + row  # the last position that the tile's first row sees
    query = load_queries(
        query_ptr, token, row, head, num_queries, query_stride, HEAD_DIM, HEAD_PAD, BLOCK_M, PACK
    )
    limit = seen + tl.arange(0, BLOCK_M) // PACK
    stop = tl.minimum(seen + BLOCK_M // PACK, num_keys)
    middle = (seen + 1) // BLOCK_N * BLOCK_N  # up to here all rows see all keys
    acc, total, peak = no_sums(BLOCK_M, HEAD_PAD)
    table_ptr = block_table_ptr + req.to(tl.int64) * table_stride
    acc, total, peak = _sweep_pages(
        query, key, value, table_ptr, acc, total, peak, limit, 0, middle, num_keys,
        head // GROUP, block_stride, token_stride, scale, HEAD_DIM, HEAD_PAD, BLOCK_N, PAGE, False,
        TMA, AHEAD, PRECISION, FP8, MIX,
    )  # fmt: skip
    acc, total, peak = _sweep_pages(
        query, key, value, table_ptr, acc, total, peak, limit, middle, stop, num_keys,
        head // GROUP, block_stride, token_stride, scale, HEAD_DIM, HEAD_PAD, BLOCK_N, PAGE, True,
        TMA, AHEAD, PRECISION, FP8, MIX,
    )  # fmt: skip
    store_rows(
        out_ptr, acc, total, token, row, head, num_queries, out_stride, HEAD_DIM, HEAD_PAD,
        BLOCK_M, PACK,
    )  # fmt: skip


def prefill_paged(
    query: torch.Tensor,  # [T', H, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    query_start: torch.Tensor,  # [R' + 1] int32
    seq_lens: torch.Tensor,  # [R'] int32
    out: torch.Tensor,  # [T', H, D]
    scale: float,
    skip_query_len: int = 0,
    *,
    max_query_len: int,
    config: PrefillConfig,
) -> None:
    """Causal attention over pages, of requests with more than ``skip_query_len`` queries."""
    for name, tensor in (("query", query), ("out", out)):
        check_rows(name, tensor)
    num_reqs = seq_lens.shape[0]
    if not num_reqs or max_query_len <= skip_query_len:
        return
    num_heads, dim = query.shape[1:]
    page, num_kv_heads = key_cache.shape[1:3]
    if is_fp8(key_cache) and config.variant != "pointer":
        raise ValueError(
            f"variant={config.variant!r} cannot read an FP8 cache: use variant='pointer'."
        )
    if config.variant == "hopper":
        from sample_engine.attention.kernels.hopper import hopper_paged

        hopper_paged(
            query, key_cache, value_cache, block_table, query_start, seq_lens, out, scale,
            skip_query_len, max_query_len=max_query_len, config=config,
        )  # fmt: skip
        return
    grid = prefill_grid(config, num_reqs, num_heads, num_kv_heads, max_query_len)
    tma = config.variant == "descriptor"
    _prefill_paged_kernel[grid](
        query,
        _cache_descriptor(key_cache, config.block_n) if tma else key_cache,
        _cache_descriptor(value_cache, config.block_n) if tma else value_cache,
        block_table,
        query_start,
        seq_lens,
        out,
        query.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        block_table.stride(0),
        out.stride(0),
        scale * LOG2_E,
        skip_query_len,
        GROUP=num_heads // num_kv_heads,
        PACK=num_heads // num_kv_heads if config.pack_heads else 1,
        HEAD_DIM=dim,
        HEAD_PAD=head_pad(dim),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        PAGE=page,
        TILE_MAJOR=config.tile_major,
        TMA=tma,
        AHEAD=config.page_ahead,
        PRECISION=dot_precision(query.dtype),
        FP8=is_fp8(key_cache),
        MIX=dot_of_values(query.dtype),
        **config.options,
    )


def _cache_descriptor(
    cache: torch.Tensor,  # [B, P, K, D]
    block_n: int,
) -> Any:
    page = cache.shape[1]
    if page % block_n:
        raise ValueError(
            f"variant='descriptor' needs pages of a multiple of block_n={block_n} tokens, these "
            f"hold {page}: use variant='pointer', or a smaller block_n."
        )
    return rows_descriptor(cache.flatten(0, 1), block_n)
