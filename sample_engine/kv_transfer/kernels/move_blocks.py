"""A kernel that moves blocks of many caches of one shape to rows, or back, in one launch.

Shapes::

    n  blocks that are moved
    C  caches
    E  numbers of a block in one cache
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sample_engine.kernels.common import jit

__all__ = ["move_blocks"]

_PIECE = 4096


@jit
def _move(
    caches_ptr: tl.tensor,  # [C] int64: where each cache begins
    ids_ptr: tl.tensor,  # [n] int64
    rows_ptr: tl.tensor,  # [n, C * E]
    num_caches: tl.tensor,
    E: tl.constexpr,
    PIECE: tl.constexpr,
    TO_ROWS: tl.constexpr,
) -> None:
    """Program (i, c, p) moves piece p of block i of cache c."""
    row, cache, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    places = piece * PIECE + tl.arange(0, PIECE)
    within = places < E
    start = tl.load(caches_ptr + cache).to(tl.pointer_type(rows_ptr.dtype.element_ty))
    blocks = start + tl.load(ids_ptr + row) * E + places
    rows = rows_ptr + row.to(tl.int64) * num_caches * E + cache * E + places
    if TO_ROWS:
        tl.store(rows, tl.load(blocks, mask=within), mask=within)
    else:
        tl.store(blocks, tl.load(rows, mask=within), mask=within)


def move_blocks(
    starts: Tensor,  # [C] int64, on the rows' device: where each cache [B, E] begins
    ids: Tensor,  # [n] int64
    rows: Tensor,  # [n, C * E], contiguous, of the caches' dtype
    *,
    to_rows: bool,
) -> None:
    """Copy blocks of all caches to rows, or rows to blocks."""
    count = len(starts)
    size = rows.shape[1] // count
    grid = (len(ids), count, triton.cdiv(size, _PIECE))
    _move[grid](starts, ids, rows, count, E=size, PIECE=_PIECE, TO_ROWS=to_rows, num_warps=4)
