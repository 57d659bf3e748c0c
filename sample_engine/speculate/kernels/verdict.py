"""The kernels that say which drafts count, and add what is certain to the texts.

One program for each request. In torch's operators they are some twenty launches of a few numbers
each, which take longer than a small model's layer.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2

__all__ = ["accept", "append"]


@jit
def _accept_kernel(
    drafts_ptr: tl.tensor,  # [R, k] int64
    num_drafts_ptr: tl.tensor,  # [R] int64
    first_rows_ptr: tl.tensor,  # [R] int64
    samples_ptr: tl.tensor,  # [R] bool
    found_ptr: tl.tensor,  # [2, N] int64
    accepted_ptr: tl.tensor,  # [N] bool, read with ACCEPTED alone
    tokens_ptr: tl.tensor,  # [R, k + 1] int64, written
    num_sampled_ptr: tl.tensor,  # [R] int64, written
    num_rows: tl.tensor,
    not_finite: tl.tensor,
    ACCEPTED: tl.constexpr,
    WIDTH: tl.constexpr,  # k
    WIDTH_PAD: tl.constexpr,  # more than k
) -> None:
    req = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH_PAD)
    count = tl.load(num_drafts_ptr + req)
    samples = tl.load(samples_ptr + req) != 0
    rows = tl.minimum(tl.load(first_rows_ptr + req) + place, num_rows - 1)
    drafts = tl.load(drafts_ptr + req * WIDTH + place, mask=place < WIDTH, other=-1)
    told = tl.load(found_ptr + num_rows + rows)
    if ACCEPTED:
        right = tl.load(accepted_ptr + rows) != 0
    else:
        right = tl.load(found_ptr + rows) == drafts
    counts = right & (place < tl.minimum(count, WIDTH)) & samples
    num_accepted = tl.min(tl.where(counts, WIDTH_PAD, place), 0)  # up to the first that is wrong
    num_sampled = tl.where(samples, num_accepted + 1, 0)
    tokens = tl.where((place < num_accepted) & (told != not_finite), drafts, told)
    tokens = tl.where(place < num_sampled, tokens, -1)
    tl.store(tokens_ptr + req * (WIDTH + 1) + place, tokens, mask=place <= WIDTH)
    tl.store(num_sampled_ptr + req, num_sampled.to(tl.int64))


@jit
def _append_kernel(
    texts_ptr: tl.tensor,  # [S, L] int64, written
    rows_ptr: tl.tensor,  # [R] int64
    lengths_ptr: tl.tensor,  # [R] int64
    tokens_ptr: tl.tensor,  # [R, WIDTH] int64
    num_sampled_ptr: tl.tensor,  # [R] int64
    sums_ptr: tl.tensor,  # [R] int64, written
    texts_stride: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
) -> None:
    req = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH_PAD)
    length, count = tl.load(lengths_ptr + req), tl.load(num_sampled_ptr + req)
    ok = place < tl.minimum(count, WIDTH)
    tokens = tl.load(tokens_ptr + req * WIDTH + place, mask=ok, other=0)
    text_ptr = texts_ptr + tl.load(rows_ptr + req) * texts_stride
    tl.store(text_ptr + length + place, tl.maximum(tokens, 0), mask=ok)
    tl.store(sums_ptr + req, length + count)


def accept(
    drafts: torch.Tensor,  # [R, k] int64; -1 where there is none
    num_drafts: torch.Tensor,  # [R] int64
    first_rows: torch.Tensor,  # [R] int64
    samples: torch.Tensor,  # [R] bool
    found: torch.Tensor,  # [2, N] int64: the model's choices, and what is told of them
    not_finite: int,
    accepted: torch.Tensor | None = None,  # [N] bool; None: a draft counts that is the choice
) -> tuple[torch.Tensor, torch.Tensor]:  # [R, k + 1] int64, [R] int64
    """What is certain of each request, padded with -1, and how many tokens that is."""
    num_reqs, width = drafts.shape
    tokens = torch.empty(num_reqs, width + 1, dtype=torch.int64, device=drafts.device)
    num_sampled = torch.empty(num_reqs, dtype=torch.int64, device=drafts.device)
    if num_reqs:
        _accept_kernel[(num_reqs,)](
            drafts,
            num_drafts,
            first_rows,
            samples,
            found,
            samples if accepted is None else accepted,
            tokens,
            num_sampled,
            found.shape[1],
            not_finite,
            ACCEPTED=accepted is not None,
            WIDTH=width,
            WIDTH_PAD=next_power_of_2(width + 1),
            num_warps=1,
        )
    return tokens, num_sampled


def append(
    texts: torch.Tensor,  # [S, L] int64, written
    rows: torch.Tensor,  # [R] int64, of the S
    lengths: torch.Tensor,  # [R] int64
    tokens: torch.Tensor,  # [R, k + 1] int64
    num_sampled: torch.Tensor,  # [R] int64
) -> torch.Tensor:  # [R] int64
    """Write what is certain behind the texts; how long they are then."""
    num_reqs, width = tokens.shape
    sums = torch.empty_like(lengths)
    if num_reqs:
        _append_kernel[(num_reqs,)](
            texts,
            rows,
            lengths,
            tokens,
            num_sampled,
            sums,
            texts.stride(0),
            WIDTH=width,
            WIDTH_PAD=next_power_of_2(width),
            num_warps=1,
        )
    return sums
