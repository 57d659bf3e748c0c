"""The kernel for requests with few queries: decode, and verification of a few drafts.

A program takes one item (a stretch of one request's keys, see ``splits``) and one KV head; the
query heads of that KV head, for all queries of the request, are the rows of its tile: row ``r`` is
query ``r // GROUP`` and head ``r % GROUP``. So keys are read once, and enough programs read at the
same time to use the memory's whole bandwidth, even with one request. A request that is one item is
written to the output at once; the items of others are partial results for ``combine_splits``.
"""

from __future__ import annotations

import dataclasses
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
    split_length,
    unpack_fp8,
)
from sample_engine.attention.kernels.fp8_cache import is_fp8
from sample_engine.attention.kernels.prefill import check_rows
from sample_engine.attention.kernels.splits import FixedSplits, PlannedSplits, Splits
from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs

__all__ = ["DecodeConfig", "decode_paged"]

_LEAST_ROWS = 16  # of a tile that tensor cores take


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How the decode kernel is built. ``split_len=None``: as ``tuning`` finds best for a batch."""

    block_n: int = 64
    num_warps: int = 4
    num_stages: int = 3
    split_len: int | None = None
    evict_first: bool = False  # tell the cache that keys and values are read once

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@jit
def _take_keys(
    query: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    key_ptr: tl.tensor,  # [B, P, K, D]
    value_ptr: tl.tensor,
    table_ptr: tl.tensor,  # [max_blocks]: this request's row
    limit: tl.tensor,  # [BLOCK_M]: the last position that each row sees
    start: tl.tensor,
    stop: tl.tensor,
    head: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    POLICY: tl.constexpr,
    PRECISION: tl.constexpr,
    FP8: tl.constexpr,
    MIX: tl.constexpr,
) -> Any:
    """Attention over the keys from ``start`` to ``stop``."""
    acc = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    offsets = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_PAD)[None, :]
    keys, values = key_ptr + head * HEAD_DIM, value_ptr + head * HEAD_DIM
    # The look-up of pages runs a tile ahead, so that keys are asked for without a wait.
    ONE_PAGE: tl.constexpr = PAGE % BLOCK_N == 0
    blocks = look_up(table_ptr, start, offsets, stop, PAGE, ONE_PAGE, True)
    for first in tl.range(start, stop, BLOCK_N):
        here = first + offsets
        ok = here[:, None] < stop
        at = places(blocks, first, offsets, dims, block_stride, token_stride, PAGE, ONE_PAGE)
        if FP8:
            key_scales, value_scales = scales_of_rows(
                key_ptr, value_ptr, blocks, first, offsets, stop, head, block_stride, token_stride,
                HEAD_DIM, PAGE,
            )  # fmt: skip
        blocks = look_up(table_ptr, first + BLOCK_N, offsets, stop, PAGE, ONE_PAGE, True)
        k = load_tile(keys + at, ok, dims, HEAD_DIM, HEAD_PAD, True, POLICY)
        if FP8:
            k = unpack_fp8(k, query.dtype)
        scores = tl.dot(query, k.T, input_precision=PRECISION)
        if FP8:
            scores *= key_scales[None, :]
        seen = (here[None, :] < stop) & (here[None, :] <= limit[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        weights, acc, total, peak = absorb(scores, acc, total, peak, scale, True)
        v = load_tile(values + at, ok, dims, HEAD_DIM, HEAD_PAD, True, POLICY)
        if FP8:
            weights *= value_scales[None, :]
            v = unpack_fp8(v, MIX)
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, peak


@jit
def _item_of(
    seq_len_ptr: tl.tensor,
    item_req_ptr: tl.tensor,
    item_start_ptr: tl.tensor,
    item_stop_ptr: tl.tensor,
    first_item_ptr: tl.tensor,
    num_splits: tl.tensor,
    split_len: tl.tensor,
    split_block: tl.tensor,
    PLANNED: tl.constexpr,
) -> Any:
    """The item of this program: request, keys, and whether it is the only one of the request.

    Of an item that is not used ``stop`` is not after ``start``.
    """
    item = tl.program_id(1)
    if PLANNED:
        req = tl.load(item_req_ptr + item)
        start = tl.load(item_start_ptr + item)
        stop = tl.where(req >= 0, tl.load(item_stop_ptr + item), start)
        req = tl.maximum(req, 0)
        first = tl.load(first_item_ptr + req)
        alone = tl.load(first_item_ptr + req + 1) - first == 1
        num_keys = tl.load(seq_len_ptr + req)
    else:
        req = item // num_splits
        num_keys = tl.load(seq_len_ptr + req)
        length = split_length(num_keys, num_splits, split_len, split_block)
        start = item % num_splits * length
        stop = tl.minimum(start + length, num_keys)
        alone = num_keys <= length
    return item, req, num_keys, start, stop, alone


@jit
def _store_item(
    acc: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    total: tl.tensor,  # [BLOCK_M]
    peak: tl.tensor,  # [BLOCK_M]
    out_ptr: tl.tensor,
    partial_out_ptr: tl.tensor,
    partial_lse_ptr: tl.tensor,
    item: tl.tensor,
    alone: tl.tensor,
    token: tl.tensor,
    row: tl.tensor,  # [BLOCK_M]: the query of each row
    head: tl.tensor,  # [BLOCK_M]: and its head
    mask: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    num_queries: tl.tensor,
    max_query_len: tl.tensor,
    out_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
) -> None:
    """Write the result, or the partial result, of an item."""
    dims = tl.arange(0, HEAD_PAD)[None, :]
    empty = total == 0.0  # every key of the item is later than the row
    result = acc / tl.where(empty, 1.0, total)[:, None]
    if alone:
        place = (token + row).to(tl.int64) * out_stride + head * HEAD_DIM
        tl.store(out_ptr + place[:, None] + dims, result.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        line = (item.to(tl.int64) * max_query_len + row) * NUM_HEADS + head
        lse = tl.where(empty, float("-inf"), peak + tl.log2(tl.where(empty, 1.0, total)))
        tl.store(partial_out_ptr + line[:, None] * HEAD_DIM + dims, result, mask=mask)
        tl.store(partial_lse_ptr + line, lse, mask=row < num_queries)


@jit
def _decode_paged_kernel(
    query_ptr: tl.tensor,  # [T', H, D]
    key_ptr: tl.tensor,  # [B, P, K, D]
    value_ptr: tl.tensor,  # [B, P, K, D]
    block_table_ptr: tl.tensor,  # [R', max_blocks] int32
    query_start_ptr: tl.tensor,  # [R' + 1] int32
    seq_len_ptr: tl.tensor,  # [R'] int32
    out_ptr: tl.tensor,  # [T', H, D]
    partial_out_ptr: tl.tensor,  # [N, Q, H, D] float32
    partial_lse_ptr: tl.tensor,  # [N, Q, H] float32
    item_req_ptr: tl.tensor,  # [N] int32
    item_start_ptr: tl.tensor,  # [N] int32
    item_stop_ptr: tl.tensor,  # [N] int32
    first_item_ptr: tl.tensor,  # [R' + 1] int32
    query_stride: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    table_stride: tl.tensor,
    out_stride: tl.tensor,
    num_splits: tl.tensor,
    split_len: tl.tensor,
    split_block: tl.tensor,
    scale: tl.tensor,
    max_query_len: tl.tensor,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    PLANNED: tl.constexpr,
    POLICY: tl.constexpr,
    PRECISION: tl.constexpr,
    FP8: tl.constexpr,
    MIX: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    wait_for_inputs(OVERLAP)
    item, req, num_keys, start, stop, alone = _item_of(
        seq_len_ptr, item_req_ptr, item_start_ptr, item_stop_ptr, first_item_ptr, num_splits,
        split_len, split_block, PLANNED,
    )  # fmt: skip
    # All that is to be looked up is asked for before the first of it is waited for.
    token = tl.load(query_start_ptr + req)
    num_queries = tl.load(query_start_ptr + req + 1) - token
    unserved = (num_queries == 0) | (num_queries > max_query_len)
    if (start >= stop) | unserved:
        return
    at = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PAD)[None, :]
    row, head = at // GROUP, tl.program_id(0) * GROUP + at % GROUP
    mask = (row < num_queries)[:, None] & (dims < HEAD_DIM)
    place = (token + row).to(tl.int64) * query_stride + head * HEAD_DIM
    query = tl.load(query_ptr + place[:, None] + dims, mask=mask, other=0.0)
    limit = num_keys - num_queries + row
    acc, total, peak = _take_keys(
        query, key_ptr, value_ptr, block_table_ptr + req.to(tl.int64) * table_stride, limit, start,
        stop, tl.program_id(0), block_stride, token_stride, scale, HEAD_DIM, HEAD_PAD, BLOCK_M,
        BLOCK_N, PAGE, POLICY, PRECISION, FP8, MIX,
    )  # fmt: skip
    _store_item(
        acc, total, peak, out_ptr, partial_out_ptr, partial_lse_ptr, item, alone, token, row, head,
        mask, num_queries, max_query_len, out_stride, NUM_HEADS, HEAD_DIM, HEAD_PAD,
    )  # fmt: skip


def decode_paged(
    query: torch.Tensor,  # [T', H, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    query_start: torch.Tensor,  # [R' + 1] int32
    seq_lens: torch.Tensor,  # [R'] int32
    out: torch.Tensor,  # [T', H, D]
    partial_out: torch.Tensor,  # [N, Q, H, D] float32
    partial_lse: torch.Tensor,  # [N, Q, H] float32, logarithms to base 2
    scale: float,
    splits: Splits,
    *,
    config: DecodeConfig,
    overlap: bool = False,
) -> None:
    """Attention of each item, for requests with 1 to Q queries; whole ones go to ``out``."""
    check_rows("query", query)
    check_rows("out", out)
    num_reqs = seq_lens.shape[0]
    capacity = splits.capacity(num_reqs)
    if not capacity:
        return
    max_query_len, num_heads, dim = partial_out.shape[1:]
    page, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    planned = splits if isinstance(splits, PlannedSplits) else None
    unplanned = FixedSplits(1, 1) if isinstance(splits, PlannedSplits) else splits
    unused = (query_start,) * 4
    _decode_paged_kernel[(num_kv_heads, capacity)](
        query,
        key_cache,
        value_cache,
        block_table,
        query_start,
        seq_lens,
        out,
        partial_out,
        partial_lse,
        *(planned.tensors if planned else unused),
        query.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        block_table.stride(0),
        out.stride(0),
        unplanned.num_splits,
        unplanned.split_len,
        unplanned.block,
        scale * LOG2_E,
        max_query_len,
        NUM_HEADS=num_heads,
        GROUP=group,
        HEAD_DIM=dim,
        HEAD_PAD=head_pad(dim),
        BLOCK_M=max(_LEAST_ROWS, next_power_of_2(max_query_len * group)),
        BLOCK_N=config.block_n,
        PAGE=page,
        PLANNED=planned is not None,
        POLICY="evict_first" if config.evict_first else "",
        PRECISION=dot_precision(query.dtype),
        FP8=is_fp8(key_cache),
        MIX=dot_of_values(query.dtype),
        OVERLAP=overlap,
        launch_pdl=overlap,
        **config.options,
    )
