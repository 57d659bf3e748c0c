"""The kernel that copies pages to where a library without pages can read them."""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2

__all__ = ["gather_kv"]

_TOKENS = 8  # of one program


@jit
def _gather_kv_kernel(
    cache_ptr: tl.tensor,  # [B, P, K, D]
    block_table_ptr: tl.tensor,  # [R', max_blocks] int32
    kv_start_ptr: tl.tensor,  # [R' + 1] int32
    out_ptr: tl.tensor,  # [S, K, D]
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    table_stride: tl.tensor,
    out_stride: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    req = tl.program_id(1)
    first = tl.load(kv_start_ptr + req)
    num_keys = tl.load(kv_start_ptr + req + 1) - first
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    if tl.program_id(0) * TOKENS >= num_keys:
        return
    ok = tokens < num_keys
    at = tl.arange(0, WIDTH_PAD)[None, :]
    row = block_table_ptr + req.to(tl.int64) * table_stride
    blocks = tl.load(row + tokens // PAGE, mask=ok, other=0)
    place = blocks.to(tl.int64) * block_stride + (tokens % PAGE) * token_stride
    mask = ok[:, None] & (at < WIDTH)
    data = tl.load(cache_ptr + place[:, None] + at, mask=mask)
    lines = (first + tokens).to(tl.int64) * out_stride
    tl.store(out_ptr + lines[:, None] + at, data, mask=mask)


def gather_kv(
    cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    kv_start: torch.Tensor,  # [R' + 1] int32: where each sequence goes
    out: torch.Tensor,  # [S, K, D]
    *,
    max_seq_len: int,
) -> None:
    """Copy the pages of sequences to a place where they lie one after the other."""
    num_reqs = block_table.shape[0]
    if not num_reqs or not max_seq_len:
        return
    width = cache.shape[2] * cache.shape[3]
    _gather_kv_kernel[(-(-max_seq_len // _TOKENS), num_reqs)](
        cache,
        block_table,
        kv_start,
        out,
        cache.stride(0),
        cache.stride(1),
        block_table.stride(0),
        out.stride(0),
        WIDTH=width,
        WIDTH_PAD=next_power_of_2(width),
        PAGE=cache.shape[1],
        TOKENS=_TOKENS,
        num_warps=8,
    )
