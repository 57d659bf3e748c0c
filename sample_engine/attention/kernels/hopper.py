"""The prefill kernel for Hopper, written in Gluon: over contiguous and over paged memory.

Here is the kernel's frame: its shared memory, and which of its warps does what. Which tiles there
are is in ``hopper_tiles``, what loads in ``hopper_loads``, what computes in ``hopper_warps``, and
when the kernel is chosen in ``tuning``.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sample_engine.attention.capability import num_processors
from sample_engine.attention.kernels.common import LOG2_E
from sample_engine.attention.kernels.hopper_loads import lead, load_values
from sample_engine.attention.kernels.hopper_tiles import (
    FIELDS,
    SLOTS,
    TILE_ROWS,
    barriers,
    gluon_jit,
)
from sample_engine.attention.kernels.hopper_warps import consume
from sample_engine.attention.kernels.prefill import PrefillConfig

__all__ = ["hopper_contiguous", "hopper_paged"]

_ROWS = 64  # of a group of warps
_LINE = 64  # elements of 16 bits in a line of 128 bytes, the widest that TMA swizzles


@gluon_jit
def _hopper_kernel(
    query: gl.tensor,  # a descriptor of [T', H, D] as [T', H * D]
    key: gl.tensor,  # a descriptor of [S, K, D] as [S, K * D], or of the cache as [B * P, K * D]
    value: gl.tensor,
    out_ptr: gl.tensor,  # [T', H, D]
    query_start_ptr: gl.tensor,  # [R' + 1] int32
    kv_ptr: gl.tensor,  # [R' + 1] int32: where keys start; [R'] with pages: how many there are
    block_table_ptr: gl.tensor,  # [R', max_blocks] int32
    counter_ptr: gl.tensor,  # [1] int32: 0, then how many tiles were taken beyond the first ones
    table_stride: gl.tensor,
    out_stride: gl.tensor,
    scale: gl.tensor,
    num_reqs: gl.tensor,
    skip_query_len: gl.tensor,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
    TILE_LAYOUT: gl.constexpr,
) -> None:
    PIECE: gl.constexpr = min(PAGE, BLOCK_N) if PAGE else BLOCK_N
    dtype: gl.constexpr = key.dtype
    queries = gl.allocate_shared_memory(dtype, [2, 64, DIM], query.layout)
    keys = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, DIM], TILE_LAYOUT)
    values = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, DIM], TILE_LAYOUT)
    SHAPE: gl.constexpr = [STAGES * (DIM // LINE) * (BLOCK_N // PIECE), PIECE, LINE]
    key_pieces = keys._reinterpret(dtype, SHAPE, key.layout) if PAGE else keys
    value_pieces = values._reinterpret(dtype, SHAPE, value.layout) if PAGE else values
    fields = gl.allocate_shared_memory(
        gl.int32, [SLOTS * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    query_full, query_free = barriers(2, 1), barriers(2, 1)
    key_full, value_full = barriers(STAGES, 1), barriers(STAGES, 1)
    key_free, value_free = barriers(STAGES, 2), barriers(STAGES, 2)
    slots = (fields, barriers(SLOTS, 1), barriers(SLOTS, 3))  # three partitions read a tile
    fence_async_shared()
    of_barriers = (key_full, key_free, value_full, value_free)
    # Tuples of tensors alone: in a variable a constant of the compiler would become a number.
    of_queries = (query, queries, query_full, query_free)
    of_keys = (key, keys, key_pieces, key_full, key_free)
    of_values = (value, values, value_pieces, value_full, value_free)
    of_batch = (
        query_start_ptr, kv_ptr, block_table_ptr, table_stride, counter_ptr, num_reqs,
        skip_query_len,
    )  # fmt: skip
    of_rows = (
        queries, query_full, query_free, (keys, values), of_barriers, out_ptr, out_stride, scale
    )  # fmt: skip
    gl.warp_specialize([
        (consume, (of_rows, slots, 0, STAGES, BLOCK_N, DIM)),
        (consume, (of_rows, slots, 1, STAGES, BLOCK_N, DIM)),
        (lead, (
            of_queries, of_keys, slots, of_batch, HEADS, GROUP, STAGES, BLOCK_N, DIM, PAGE, LINE,
        )),
        (load_values, (
            of_values, slots, block_table_ptr, table_stride, GROUP, STAGES, BLOCK_N, DIM, PAGE,
            LINE,
        )),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip


def _descriptor(tensor: torch.Tensor, rows: int, width: int) -> Any:
    """A TMA descriptor of [rows, heads, D] as [rows, heads * D], in tiles of this size."""
    kind = gl.bfloat16 if tensor.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, width], kind)
    shape = [tensor.shape[0], tensor.shape[1] * tensor.shape[2]]
    return TensorDescriptor(tensor, shape, [tensor.stride(0), 1], [rows, width], layout)


def _launch(
    query: torch.Tensor,  # [T', H, D]
    key: torch.Tensor,  # [rows, K, D]
    value: torch.Tensor,  # [rows, K, D]
    query_start: torch.Tensor,  # [R' + 1] int32
    kv: torch.Tensor,  # [R' + 1] int32, or [R'] int32 with pages
    block_table: torch.Tensor | None,  # [R', max_blocks] int32
    out: torch.Tensor,  # [T', H, D]
    scale: float,
    skip_query_len: int,
    page: int,
    max_query_len: int,
    config: PrefillConfig,
) -> None:
    num_heads, dim = query.shape[1:]
    block_n, line = config.block_n, min(_LINE, dim)
    if config.block_m != TILE_ROWS.value or config.pack_heads or config.tile_major:
        raise ValueError(
            f"variant='hopper' needs block_m={TILE_ROWS.value}, pack_heads=False and "
            "tile_major=False."
        )
    if dim not in (64, 128, 256) or query.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"variant='hopper' needs 16 bits and head_dim 64, 128 or 256, not {dim}.")
    if page and ((page % block_n and block_n % page) or page < 8):
        raise ValueError(f"variant='hopper': block_n={block_n} does not fit pages of {page}.")
    rows, width = (min(page, block_n), line) if page else (block_n, dim)
    kind = gl.bfloat16 if query.dtype == torch.bfloat16 else gl.float16
    num_reqs = query_start.shape[0] - 1
    most_tiles = num_reqs * num_heads * -(-max_query_len // config.block_m)
    _hopper_kernel[(min(most_tiles, num_processors(query.device)),)](
        _descriptor(query, _ROWS, dim),
        _descriptor(key, rows, width),
        _descriptor(value, rows, width),
        out,
        query_start,
        kv,
        query_start if block_table is None else block_table,
        torch.zeros(1, dtype=torch.int32, device=query.device),
        0 if block_table is None else block_table.stride(0),
        out.stride(0),
        scale * LOG2_E,
        num_reqs,
        skip_query_len,
        HEADS=num_heads,
        GROUP=num_heads // key.shape[1],
        STAGES=config.num_stages,
        BLOCK_N=block_n,
        DIM=dim,
        PAGE=page,
        LINE=line,
        TILE_LAYOUT=gl.NVMMASharedLayout.get_default_for([block_n, dim], kind),
        num_warps=4,
    )


def hopper_contiguous(
    query: torch.Tensor,  # [T, H, D]
    key: torch.Tensor,  # [S, K, D]
    value: torch.Tensor,  # [S, K, D]
    query_start: torch.Tensor,  # [R + 1] int32
    kv_start: torch.Tensor,  # [R + 1] int32
    out: torch.Tensor,  # [T, H, D]
    scale: float,
    *,
    max_query_len: int,
    config: PrefillConfig,
) -> None:
    """``prefill_contiguous`` on Hopper."""
    _launch(query, key, value, query_start, kv_start, None, out, scale, 0, 0, max_query_len, config)


def hopper_paged(
    query: torch.Tensor,  # [T', H, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    query_start: torch.Tensor,  # [R' + 1] int32
    seq_lens: torch.Tensor,  # [R'] int32
    out: torch.Tensor,  # [T', H, D]
    scale: float,
    skip_query_len: int,
    *,
    max_query_len: int,
    config: PrefillConfig,
) -> None:
    """``prefill_paged`` on Hopper."""
    page = key_cache.shape[1]
    key, value = key_cache.flatten(0, 1), value_cache.flatten(0, 1)
    _launch(
        query, key, value, query_start, seq_lens, block_table, out, scale, skip_query_len, page,
        max_query_len, config,
    )  # fmt: skip
