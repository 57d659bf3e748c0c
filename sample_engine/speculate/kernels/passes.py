"""The kernels that work out which tokens a draft head reads, and where its passes are."""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.kernels.common import jit

__all__ = ["certain_ends", "place_passes"]

_BLOCK = 128  # tokens or requests of a program


@jit
def _certain_ends_kernel(
    texts_ptr: tl.tensor,  # [S, L] int64
    token_rows_ptr: tl.tensor,  # [T] int64
    positions_ptr: tl.tensor,  # [T] int64
    query_start_loc_ptr: tl.tensor,  # [R + 1] int32
    num_drafts_ptr: tl.tensor,  # [R] int64
    num_sampled_ptr: tl.tensor,  # [R] int64
    next_ids_ptr: tl.tensor,  # [T] int64, written
    last_tokens_ptr: tl.tensor,  # [R] int64, written
    texts_stride: tl.tensor,
    num_tokens: tl.tensor,
    num_reqs: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = at < num_tokens
    row = tl.load(token_rows_ptr + at, mask=is_token, other=0)
    position = tl.load(positions_ptr + at, mask=is_token, other=0)
    next_id = tl.load(texts_ptr + row * texts_stride + position + 1, mask=is_token, other=0)
    tl.store(next_ids_ptr + at, next_id, mask=is_token)
    is_req = at < num_reqs
    last = tl.load(query_start_loc_ptr + at + 1, mask=is_req, other=0).to(tl.int64) - 1
    accepted = tl.load(num_sampled_ptr + at, mask=is_req, other=0) - 1
    drafts = tl.load(num_drafts_ptr + at, mask=is_req, other=0)
    last = last - drafts + tl.maximum(accepted, 0)
    tl.store(last_tokens_ptr + at, tl.maximum(last, 0), mask=is_req)


@jit
def _place_passes_kernel(
    positions_ptr: tl.tensor,  # [T] int64
    last_tokens_ptr: tl.tensor,  # [R] int64
    seq_lens_ptr: tl.tensor,  # [R] int32
    table_ptr: tl.tensor,  # [R, max_blocks] int32
    first_positions_ptr: tl.tensor,  # [R] int64, written
    first_seq_lens_ptr: tl.tensor,  # [R] int32, written
    query_start_loc_ptr: tl.tensor,  # [R + 1] int32, written but for the first
    ahead_positions_ptr: tl.tensor,  # [k - 1, S] int64, written up to R
    ahead_seq_lens_ptr: tl.tensor,  # [k - 1, S] int32, likewise
    ahead_slots_ptr: tl.tensor,  # [k - 1, S] int64, likewise
    table_stride: tl.tensor,
    ahead_stride: tl.tensor,
    num_reqs: tl.tensor,
    max_model_len: tl.tensor,
    pad_slot: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    within = tl.arange(0, BLOCK)
    num_there = 0
    for start in tl.range(0, num_reqs, BLOCK):
        lens = tl.load(seq_lens_ptr + start + within, mask=start + within < num_reqs, other=0)
        num_there += tl.sum((lens > 0).to(tl.int32), 0)
    req = tl.program_id(0) * BLOCK + within
    ok = req < num_reqs
    there = tl.load(seq_lens_ptr + req, mask=ok, other=0) > 0
    tl.store(query_start_loc_ptr + 1 + req, tl.minimum(req + 1, num_there), mask=ok)
    last = tl.load(last_tokens_ptr + req, mask=ok, other=0)
    first = tl.load(positions_ptr + last, mask=ok, other=0)
    tl.store(first_positions_ptr + req, first, mask=ok)
    tl.store(first_seq_lens_ptr + req, there.to(tl.int32), mask=ok)
    table_ptr += req.to(tl.int64) * table_stride
    for index in tl.static_range(PASSES):
        position = tl.minimum(first + index + 1, max_model_len - 1)
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=ok, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        slot = tl.where((block > 0) & there, slot, pad_slot)
        place = index * ahead_stride + req
        tl.store(ahead_positions_ptr + place, position, mask=ok)
        tl.store(ahead_seq_lens_ptr + place, tl.where(there, position + 1, 0), mask=ok)
        tl.store(ahead_slots_ptr + place, slot, mask=ok)


def certain_ends(
    texts: torch.Tensor,  # [S, L] int64
    token_rows: torch.Tensor,  # [T] int64, of the S
    positions: torch.Tensor,  # [T] int64
    query_start_loc: torch.Tensor,  # [R + 1] int32
    num_drafts: torch.Tensor,  # [R] int64
    num_sampled: torch.Tensor,  # [R] int64
) -> tuple[torch.Tensor, torch.Tensor]:  # [T] int64, [R] int64
    """The token after each of a step; and which of the T is each request's last certain one."""
    num_tokens, num_reqs = token_rows.shape[0], num_drafts.shape[0]
    next_ids, last_tokens = torch.empty_like(token_rows), torch.empty_like(num_drafts)
    most = max(num_tokens, num_reqs)
    if most:
        _certain_ends_kernel[(-(-most // _BLOCK),)](
            texts,
            token_rows,
            positions,
            query_start_loc,
            num_drafts,
            num_sampled,
            next_ids,
            last_tokens,
            texts.stride(0),
            num_tokens,
            num_reqs,
            BLOCK=_BLOCK,
            num_warps=1,
        )
    return next_ids, last_tokens


def place_passes(
    positions: torch.Tensor,  # [T] int64
    last_tokens: torch.Tensor,  # [R] int64, of the T
    seq_lens: torch.Tensor,  # [R] int32; 0 where nobody is, and that is at the end
    block_table: torch.Tensor,  # [R, max_blocks] int32
    block_size: int,
    max_model_len: int,
    pad_slot: int,
    first: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # [R], [R], [R + 1], written
    ahead: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # [k - 1, S] each, written up to R
) -> None:
    """Where the passes of a draft head are, and who takes part in those that follow the first.

    ``first`` is the positions of the first pass, 1 for who takes part (int32), and where the
    queries of the others begin (int32, of which the first is 0 and stays so). ``ahead`` is
    positions, lengths (int32) and slots of the others; they end with the longest text, and what has
    no block of its own is kept nowhere.
    """
    num_reqs = last_tokens.shape[0]
    if num_reqs:
        _place_passes_kernel[(-(-num_reqs // _BLOCK),)](
            positions,
            last_tokens,
            seq_lens,
            block_table,
            *first,
            *ahead,
            block_table.stride(0),
            ahead[0].stride(0),
            num_reqs,
            max_model_len,
            pad_slot,
            BLOCK_SIZE=block_size,
            PASSES=ahead[0].shape[0],
            BLOCK=_BLOCK,
            num_warps=1,
        )
