"""The kernels of a greedy choice: the most likely token of each row, and whether it has a NaN.

Torch reduces one row of a large vocabulary with few programs, and once for each question. Here a
row is read once, by as many programs as it has pieces.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs
from sample_engine.model.kernels.common import elements

__all__ = ["greedy"]

_PIECE = 4096  # logits of a program


@jit
def _greedy_piece_kernel(
    logits_ptr: tl.tensor,  # [N, V]
    value_ptr: tl.tensor,  # [N, pieces] float32: the largest logit
    index_ptr: tl.tensor,  # [N, pieces] int32: its place, the first one
    finite_ptr: tl.tensor,  # [N, pieces] int8
    stride: tl.tensor,
    size: tl.tensor,
    PIECE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    ok = at < size
    wait_for_inputs(OVERLAP)
    logits = tl.load(logits_ptr + row * stride + at, mask=ok, other=0.0).to(tl.float32)
    wrong = (logits != logits) | (tl.abs(logits) == float("inf"))
    numbers = tl.where(ok & (logits == logits), logits, float("-inf"))
    best = tl.max(numbers, 0)
    first = tl.min(tl.where(ok & (numbers == best), at, size - 1), 0)
    place = row * tl.num_programs(1) + piece
    tl.store(value_ptr + place, best)
    tl.store(index_ptr + place, first)
    tl.store(finite_ptr + place, (tl.max(wrong.to(tl.int32), 0) == 0).to(tl.int8))


@jit
def _greedy_kernel(
    value_ptr: tl.tensor,  # [N, pieces] float32
    index_ptr: tl.tensor,  # [N, pieces] int32
    finite_ptr: tl.tensor,  # [N, pieces] int8
    out_ptr: tl.tensor,  # [2, N] int64
    instead: tl.tensor,
    PIECES: tl.constexpr,
    PIECES_PAD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    pieces = tl.arange(0, PIECES_PAD)
    ok = pieces < PIECES
    wait_for_inputs(OVERLAP)
    place = row * PIECES + pieces
    values = tl.load(value_ptr + place, mask=ok, other=float("-inf"))
    places = tl.load(index_ptr + place, mask=ok, other=2**31 - 1)
    finite = tl.min(tl.load(finite_ptr + place, mask=ok, other=1).to(tl.int32), 0)
    best = tl.max(values, 0)
    chosen = tl.min(tl.where(values == best, places, 2**31 - 1), 0).to(tl.int64)
    tl.store(out_ptr + row, chosen)
    told = tl.where(finite != 0, chosen, instead.to(tl.int64))
    tl.store(out_ptr + tl.num_programs(0) + row, told)


def greedy(
    logits: torch.Tensor,  # [N, V]
    instead: int,
    *,
    overlap: bool = False,
) -> torch.Tensor:  # [2, N] int64
    """The first of the largest logits of each row; below it the same, or ``instead``.

    ``instead`` it is of rows with a NaN or an infinity. Of these the choice is some token.
    """
    num_rows, stride = elements(logits)
    size = logits.shape[1]
    pieces = -(-size // _PIECE)
    out = torch.empty((2, num_rows), dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    parts = [
        torch.empty((num_rows, pieces), dtype=dtype, device=logits.device)
        for dtype in (torch.float32, torch.int32, torch.int8)
    ]
    _greedy_piece_kernel[(num_rows, pieces)](
        logits,
        *parts,
        stride,
        size,
        PIECE=min(_PIECE, next_power_of_2(size)),
        OVERLAP=overlap,
        num_warps=8,
        launch_pdl=overlap,
    )
    _greedy_kernel[(num_rows,)](
        *parts,
        out,
        instead,
        PIECES=pieces,
        PIECES_PAD=next_power_of_2(pieces),
        OVERLAP=overlap,
        num_warps=1,
        launch_pdl=overlap,
    )
    return out
