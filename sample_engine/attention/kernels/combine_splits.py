"""Puts the items of a split decode together.

``decode_paged`` computed them. Requests that are one item are done already.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.attention.kernels.common import split_length
from sample_engine.attention.kernels.splits import FixedSplits, PlannedSplits, Splits
from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs

__all__ = ["combine_splits"]

_AT_A_TIME = 32


@jit
def _combine_splits_kernel(
    partial_out_ptr: tl.tensor,  # [N, Q, H, D] float32
    partial_lse_ptr: tl.tensor,  # [N, Q, H] float32
    query_start_ptr: tl.tensor,  # [R' + 1] int32
    seq_len_ptr: tl.tensor,  # [R'] int32
    first_item_ptr: tl.tensor,  # [R' + 1] int32
    out_ptr: tl.tensor,  # [T', H, D]
    out_stride: tl.tensor,
    num_splits: tl.tensor,
    split_len: tl.tensor,
    split_block: tl.tensor,
    max_query_len: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PLANNED: tl.constexpr,
    AT_A_TIME: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    wait_for_inputs(OVERLAP)
    head = tl.program_id(0)
    row = tl.program_id(1) % max_query_len
    req = tl.program_id(1) // max_query_len
    token = tl.load(query_start_ptr + req)
    num_queries = tl.load(query_start_ptr + req + 1) - token
    if PLANNED:
        first = tl.load(first_item_ptr + req)
        count = tl.load(first_item_ptr + req + 1) - first
    else:
        first = req * num_splits
        num_keys = tl.load(seq_len_ptr + req)
        length = split_length(num_keys, num_splits, split_len, split_block)
        count = (num_keys + length - 1) // tl.maximum(length, 1)
    if (row >= num_queries) | (num_queries > max_query_len) | (count <= 1):
        return
    dims = tl.arange(0, HEAD_PAD)[None, :]
    items = tl.arange(0, AT_A_TIME)
    acc = tl.zeros([HEAD_PAD], tl.float32)
    total = tl.zeros([AT_A_TIME], tl.float32)
    peak = tl.full([AT_A_TIME], float("-inf"), tl.float32)  # the same in all places
    for begin in range(0, count, AT_A_TIME):
        ok = begin + items < count
        item = (first + begin + items).to(tl.int64)
        line = (item * max_query_len + row) * tl.num_programs(0) + head
        lse = tl.load(partial_lse_ptr + line, mask=ok, other=float("-inf"))
        new_peak = tl.maximum(peak, tl.max(lse, 0))  # the first item has a key for each row
        weight = tl.exp2(lse - new_peak)
        shrink = tl.exp2(peak - new_peak)
        mask = ok[:, None] & (dims < HEAD_DIM)
        part = tl.load(partial_out_ptr + line[:, None] * HEAD_DIM + dims, mask=mask, other=0.0)
        acc = acc * tl.max(shrink, 0) + tl.sum(part * weight[:, None], 0)
        total = total * shrink + weight
        peak = new_peak
    result = acc / tl.sum(total, 0)
    at = tl.arange(0, HEAD_PAD)
    place = (token + row).to(tl.int64) * out_stride + head * HEAD_DIM
    tl.store(out_ptr + place + at, result.to(out_ptr.dtype.element_ty), mask=at < HEAD_DIM)


def combine_splits(
    partial_out: torch.Tensor,  # [N, Q, H, D] float32
    partial_lse: torch.Tensor,  # [N, Q, H] float32, logarithms to base 2
    query_start: torch.Tensor,  # [R' + 1] int32
    seq_lens: torch.Tensor,  # [R'] int32
    out: torch.Tensor,  # [T', H, D]
    splits: Splits,
    *,
    overlap: bool = False,
) -> None:
    """Put the items of each request with 1 to Q queries together; leave all other rows alone."""
    max_query_len, num_heads, dim = partial_out.shape[1:]
    num_reqs = seq_lens.shape[0]
    planned = isinstance(splits, PlannedSplits)
    unplanned = FixedSplits(1, 2) if isinstance(splits, PlannedSplits) else splits
    if not num_reqs or unplanned.num_splits == 1:
        return
    _combine_splits_kernel[(num_heads, num_reqs * max_query_len)](
        partial_out,
        partial_lse,
        query_start,
        seq_lens,
        splits.first_item if isinstance(splits, PlannedSplits) else query_start,
        out,
        out.stride(0),
        unplanned.num_splits,
        unplanned.split_len,
        unplanned.block,
        max_query_len,
        HEAD_DIM=dim,
        HEAD_PAD=next_power_of_2(dim),
        PLANNED=planned,
        AT_A_TIME=_AT_A_TIME,
        OVERLAP=overlap,
        num_warps=4,
        launch_pdl=overlap,
    )
