"""The kernel that writes the step which mostly follows one of decodes: one program per request."""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.batch.draft_tensors import NextStep
from sample_engine.kernels.common import jit, next_power_of_2

__all__ = ["write_next_step"]

_BLOCK = 128  # requests whose numbers a program adds up in one round


@jit
def _write_next_step_kernel(
    texts_ptr: tl.tensor,  # [S, L] int64
    rows_ptr: tl.tensor,  # [R] int64
    samples_ptr: tl.tensor,  # [R] bool
    lengths_ptr: tl.tensor,  # [R] int64
    drafts_ptr: tl.tensor,  # [R, k] int64
    counts_ptr: tl.tensor,  # [R] int64, read with HAS_COUNTS alone
    table_ptr: tl.tensor,  # [R, max_blocks] int32
    input_ids_ptr: tl.tensor,  # [M] int64, written as all that follow
    positions_ptr: tl.tensor,  # [M] int64
    slots_ptr: tl.tensor,  # [M] int64
    token_rows_ptr: tl.tensor,  # [M] int64
    query_start_loc_ptr: tl.tensor,  # [R + 1] int32, but for the first
    seq_lens_ptr: tl.tensor,  # [R] int32
    known_ptr: tl.tensor,  # [R] int64
    num_drafts_ptr: tl.tensor,  # [R] int64
    first_rows_ptr: tl.tensor,  # [R] int64
    token_ids_ptr: tl.tensor,  # [R, k] int64
    texts_stride: tl.tensor,
    table_stride: tl.tensor,
    num_reqs: tl.tensor,
    num_tokens: tl.tensor,  # M
    longest: tl.tensor,
    pad_slot: tl.tensor,
    nobody: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    WIDTH: tl.constexpr,  # k
    WIDTH_PAD: tl.constexpr,  # more than k
    BLOCK: tl.constexpr,
) -> None:
    req = tl.program_id(0)
    within = tl.arange(0, BLOCK)
    begin = 0
    total = 0
    for start in tl.range(0, num_reqs, BLOCK):
        other = start + within
        tokens = tl.load(samples_ptr + other, mask=other < num_reqs, other=0).to(tl.int32)
        if HAS_COUNTS:
            count = tl.load(counts_ptr + other, mask=other < num_reqs, other=0).to(tl.int32)
            tokens *= count + 1
        else:
            tokens *= WIDTH + 1
        total += tl.sum(tokens, 0)
        begin += tl.sum(tl.where(other < req, tokens, 0), 0)
    there = tl.load(samples_ptr + req).to(tl.int32)
    num_drafts = there * WIDTH
    if HAS_COUNTS:
        num_drafts = there * tl.load(counts_ptr + req).to(tl.int32)
    row, known = tl.load(rows_ptr + req), tl.load(lengths_ptr + req) * there
    place = tl.arange(0, WIDTH_PAD)
    mine_ptr = drafts_ptr + req.to(tl.int64) * WIDTH
    drafts = tl.load(mine_ptr + place, mask=place < num_drafts, other=-1)
    tl.store(token_ids_ptr + req.to(tl.int64) * WIDTH + place, drafts, mask=place < WIDTH)
    last = tl.load(texts_ptr + row * texts_stride + tl.maximum(known - 1, 0))
    drafted = (place > 0) & (place <= num_drafts)
    ids = tl.load(mine_ptr + place - 1, mask=drafted, other=0)
    ids = tl.where(place == 0, last, ids)
    position = known - 1 + place
    at = begin + place
    ok = (place < there * (num_drafts + 1)) & (at < num_tokens)
    inside = ok & (position < longest)
    place_ptr = table_ptr + req.to(tl.int64) * table_stride + position // BLOCK_SIZE
    block = tl.load(place_ptr, mask=inside, other=0).to(tl.int64)
    slot = tl.where(inside, block * BLOCK_SIZE + position % BLOCK_SIZE, pad_slot)
    tl.store(input_ids_ptr + at, ids, mask=ok)
    tl.store(positions_ptr + at, position, mask=ok)
    tl.store(slots_ptr + at, slot, mask=ok)
    tl.store(token_rows_ptr + at, row + tl.zeros_like(at), mask=ok)
    # Behind the last token each program fills up places that lie num_reqs apart.
    at = total + req + place * num_reqs
    ok = at < num_tokens
    nothing = tl.zeros_like(at)
    tl.store(input_ids_ptr + at, nothing, mask=ok)
    tl.store(positions_ptr + at, nothing, mask=ok)
    tl.store(slots_ptr + at, nothing + pad_slot, mask=ok)
    tl.store(token_rows_ptr + at, nothing + nobody, mask=ok)
    tl.store(query_start_loc_ptr + req + 1, begin + there * (num_drafts + 1))
    tl.store(seq_lens_ptr + req, known + num_drafts)
    tl.store(known_ptr + req, known)
    tl.store(num_drafts_ptr + req, num_drafts.to(tl.int64))
    tl.store(first_rows_ptr + req, there * begin)


def write_next_step(
    texts: torch.Tensor,  # [S, L] int64
    lengths: torch.Tensor,  # [R] int64
    drafts: torch.Tensor,  # [R, k] int64
    counts: torch.Tensor | None,  # [R] int64; None: k each
    out: NextStep,
    block_size: int,
    longest: int,
    pad_slot: int,
) -> None:
    """Write the step that goes on with these texts and drafts: see ``reference``."""
    num_reqs, width = drafts.shape
    num_tokens = out.input_ids.shape[0]
    assert num_tokens <= num_reqs * (width + 1), "what is left over is filled up by so many"
    if not num_reqs:
        return
    _write_next_step_kernel[(num_reqs,)](
        texts,
        out.rows,
        out.samples,
        lengths,
        drafts,
        lengths if counts is None else counts,
        out.block_table,
        out.input_ids,
        out.positions,
        out.slot_mapping,
        out.token_rows,
        out.query_start_loc,
        out.seq_lens,
        out.lengths,
        out.num_drafts,
        out.first_rows,
        out.token_ids,
        texts.stride(0),
        out.block_table.stride(0),
        num_reqs,
        num_tokens,
        longest,
        pad_slot,
        texts.shape[0] - 1,
        BLOCK_SIZE=block_size,
        HAS_COUNTS=counts is not None,
        WIDTH=width,
        WIDTH_PAD=next_power_of_2(width + 1),
        BLOCK=_BLOCK,
        num_warps=1,
    )
