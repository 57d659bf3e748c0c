"""The prefill kernel for Hopper, written in Gluon: over contiguous and over paged memory.

Here is which tile a program takes; what its warps do is in ``hopper_warps``, and when the kernel is
chosen in ``tuning``.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sample_engine.attention.kernels.common import LOG2_E
from sample_engine.attention.kernels.hopper_warps import consume, gluon_jit, produce, produce_keys
from sample_engine.attention.kernels.prefill import PrefillConfig

__all__ = ["hopper_contiguous", "hopper_paged"]

_ROWS = 64  # of a group of warps
_LINE = 64  # elements of 16 bits in a line of 128 bytes, the widest that TMA swizzles


@gluon_jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr) -> Any:
    """So many barriers, each for so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(made.index(index), count=ARRIVALS)
    return made


@gluon_jit
def _attend(
    query: gl.tensor,
    key: gl.tensor,
    value: gl.tensor,
    out_ptr: gl.tensor,
    table_ptr: gl.tensor,
    token: gl.tensor,
    row: gl.tensor,
    head: gl.tensor,
    num_queries: gl.tensor,
    first_key: gl.tensor,
    num_keys: gl.tensor,
    out_stride: gl.tensor,
    scale: gl.tensor,
    GROUP: gl.constexpr,
    WARP_GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
    TILE_LAYOUT: gl.constexpr,
) -> None:
    """One tile of 64 rows for each group of warps: who does what."""
    PIECE: gl.constexpr = min(PAGE, BLOCK_N) if PAGE else BLOCK_N
    seen = num_keys - num_queries + row  # the last position of the first row
    num_blocks = (gl.minimum(seen + WARP_GROUPS * 64, num_keys) + BLOCK_N - 1) // BLOCK_N
    num_masked = gl.maximum(num_blocks - (seen + 1) // BLOCK_N, 1)
    dtype: gl.constexpr = key.dtype
    queries = gl.allocate_shared_memory(dtype, [WARP_GROUPS, 64, DIM], query.layout)
    keys = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, DIM], TILE_LAYOUT)
    values = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, DIM], TILE_LAYOUT)
    SHAPE: gl.constexpr = [STAGES * (DIM // LINE) * (BLOCK_N // PIECE), PIECE, LINE]
    key_pieces = keys._reinterpret(dtype, SHAPE, key.layout) if PAGE else keys
    value_pieces = values._reinterpret(dtype, SHAPE, value.layout) if PAGE else values
    query_full = _barriers(1, 1).index(0)
    key_full, value_full = _barriers(STAGES, 1), _barriers(STAGES, 1)
    key_free, value_free = _barriers(STAGES, WARP_GROUPS), _barriers(STAGES, WARP_GROUPS)
    fence_async_shared()
    barriers = (key_full, key_free, value_full, value_free)
    tile = (token, row, head, num_queries, num_keys, num_blocks, num_masked)
    column = head // GROUP * DIM
    # Tuples of tensors alone: in a variable a constant of the compiler would become a number.
    of_queries = (query, queries, query_full, token + row, head * DIM)
    where = (table_ptr, first_key, column, num_keys, num_blocks)
    of_keys = (key, keys, key_pieces, key_full, key_free)
    of_values = (value, values, value_pieces, value_full, value_free)
    of_rows = (queries, query_full, (keys, values), barriers, tile, out_ptr, out_stride, scale)
    if WARP_GROUPS == 2:
        gl.warp_specialize([
            (consume, (of_rows, 0, STAGES, BLOCK_N, DIM)),
            (consume, (of_rows, 1, STAGES, BLOCK_N, DIM)),
            (produce_keys, (
                of_queries, of_keys, where, WARP_GROUPS, STAGES, BLOCK_N, DIM, PAGE, LINE,
            )),
            (produce, (of_values, where, STAGES, BLOCK_N, DIM, PAGE, LINE)),
        ], [4, 1, 1], [240, 24, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (of_rows, 0, STAGES, BLOCK_N, DIM)),
            (consume, (of_rows, 1, STAGES, BLOCK_N, DIM)),
            (consume, (of_rows, 2, STAGES, BLOCK_N, DIM)),
            (produce_keys, (
                of_queries, of_keys, where, WARP_GROUPS, STAGES, BLOCK_N, DIM, PAGE, LINE,
            )),
            (produce, (of_values, where, STAGES, BLOCK_N, DIM, PAGE, LINE)),
        ], [4, 4, 1, 1], [160, 160, 24, 24])  # fmt: skip


@gluon_jit
def _hopper_kernel(
    query: gl.tensor,  # a descriptor of [T', H, D] as [T', H * D]
    key: gl.tensor,  # a descriptor of [S, K, D] as [S, K * D], or of the cache as [B * P, K * D]
    value: gl.tensor,
    out_ptr: gl.tensor,  # [T', H, D]
    query_start_ptr: gl.tensor,  # [R' + 1] int32
    kv_ptr: gl.tensor,  # [R' + 1] int32: where keys start; [R'] with pages: how many there are
    block_table_ptr: gl.tensor,  # [R', max_blocks] int32
    table_stride: gl.tensor,
    out_stride: gl.tensor,
    scale: gl.tensor,
    skip_query_len: gl.tensor,
    GROUP: gl.constexpr,
    WARP_GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
    TILE_MAJOR: gl.constexpr,
    TILE_LAYOUT: gl.constexpr,
) -> None:
    if TILE_MAJOR:
        head = gl.program_id(0)
        req = gl.program_id(1)
        row = (gl.num_programs(2) - 1 - gl.program_id(2)) * WARP_GROUPS * 64
    else:
        head = gl.program_id(1) * GROUP + gl.program_id(0) % GROUP
        row = (gl.num_programs(0) // GROUP - 1 - gl.program_id(0) // GROUP) * WARP_GROUPS * 64
        req = gl.program_id(2)
    token = gl.load(query_start_ptr + req)
    num_queries = gl.load(query_start_ptr + req + 1) - token
    if PAGE:
        first_key = 0
        num_keys = gl.load(kv_ptr + req)
    else:
        first_key = gl.load(kv_ptr + req)
        num_keys = gl.load(kv_ptr + req + 1) - first_key
    if (row < num_queries) & (num_queries > skip_query_len):
        _attend(
            query, key, value, out_ptr, block_table_ptr + req.to(gl.int64) * table_stride, token,
            row, head, num_queries, first_key, num_keys, out_stride, scale, GROUP, WARP_GROUPS,
            STAGES, BLOCK_N, DIM, PAGE, LINE, TILE_LAYOUT,
        )  # fmt: skip


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
    grid: tuple[int, int, int],
    config: PrefillConfig,
) -> None:
    num_heads, dim = query.shape[1:]
    block_n, line = config.block_n, min(_LINE, dim)
    if config.block_m not in (2 * _ROWS, 3 * _ROWS) or config.pack_heads:
        raise ValueError("variant='hopper' needs block_m=128 or 192 and pack_heads=False.")
    if dim not in (64, 128, 256) or query.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"variant='hopper' needs 16 bits and head_dim 64, 128 or 256, not {dim}.")
    if page and ((page % block_n and block_n % page) or page < 8):
        raise ValueError(f"variant='hopper': block_n={block_n} does not fit pages of {page}.")
    rows, width = (min(page, block_n), line) if page else (block_n, dim)
    kind = gl.bfloat16 if query.dtype == torch.bfloat16 else gl.float16
    _hopper_kernel[grid](
        _descriptor(query, _ROWS, dim),
        _descriptor(key, rows, width),
        _descriptor(value, rows, width),
        out,
        query_start,
        kv,
        query_start if block_table is None else block_table,
        0 if block_table is None else block_table.stride(0),
        out.stride(0),
        scale * LOG2_E,
        skip_query_len,
        GROUP=num_heads // key.shape[1],
        WARP_GROUPS=config.block_m // _ROWS,
        STAGES=config.num_stages,
        BLOCK_N=block_n,
        DIM=dim,
        PAGE=page,
        LINE=line,
        TILE_MAJOR=config.tile_major,
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
    grid: tuple[int, int, int],
    config: PrefillConfig,
) -> None:
    """``prefill_contiguous`` on Hopper."""
    _launch(query, key, value, query_start, kv_start, None, out, scale, 0, 0, grid, config)


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
    grid: tuple[int, int, int],
    config: PrefillConfig,
) -> None:
    """``prefill_paged`` on Hopper."""
    page = key_cache.shape[1]
    key, value = key_cache.flatten(0, 1), value_cache.flatten(0, 1)
    _launch(
        query, key, value, query_start, seq_lens, block_table, out, scale, skip_query_len, page,
        grid, config,
    )  # fmt: skip
