"""The kernel that looks up n-grams in texts on the device: one program for each request.

The rule is that of ``sample_engine.speculate.ngram``.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2

__all__ = ["look_up_ngrams"]

_BLOCK = 2048  # places that a program looks at in one round


@jit
def _look_up_ngrams_kernel(
    texts_ptr: tl.tensor,  # [S, L] int
    lengths_ptr: tl.tensor,  # [R] int64
    rows_ptr: tl.tensor,  # [R] int64, read with HAS_ROWS alone
    wanted_ptr: tl.tensor,  # [R] int64, read with HAS_WANTED alone
    drafts_ptr: tl.tensor,  # [R, k] int64
    counts_ptr: tl.tensor,  # [R] int64
    texts_stride: tl.tensor,
    shortest: tl.tensor,
    padding: tl.tensor,
    HAS_ROWS: tl.constexpr,
    HAS_WANTED: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    req = tl.program_id(0).to(tl.int64)
    row = req
    if HAS_ROWS:
        row = tl.load(rows_ptr + req)
    length = tl.load(lengths_ptr + req).to(tl.int32)
    if HAS_WANTED:
        length = tl.where(tl.load(wanted_ptr + req) > 0, length, 0)
    text_ptr = texts_ptr + row * texts_stride
    last = length - 1
    longest = 0
    end = -1
    # From the end to the start: the first place of a given length is the last in the text, and
    # nothing is longer than DEPTH.
    stop = last
    while (stop > 0) & (longest < DEPTH):
        ends = stop - 1 - tl.arange(0, BLOCK)
        goes_on = ends >= 0
        matched = tl.zeros([BLOCK], tl.int32)
        for back in tl.static_range(DEPTH):
            token = tl.load(text_ptr + last - back, mask=last >= back, other=0)
            goes_on = goes_on & (ends >= back)
            there = tl.load(text_ptr + ends - back, mask=goes_on, other=0)
            goes_on = goes_on & (there == token)
            matched += goes_on.to(tl.int32)
        here = tl.max(matched, 0)
        if here > longest:
            longest = here
            end = tl.max(tl.where(matched == here, ends, -1), 0)
        stop -= BLOCK
    count = tl.where(longest >= shortest, tl.minimum(last - end, WIDTH), 0)
    place = tl.arange(0, WIDTH_PAD)
    drafts = tl.load(text_ptr + end + 1 + place, mask=place < count, other=padding)
    tl.store(drafts_ptr + req * WIDTH + place, drafts.to(tl.int64), mask=place < WIDTH)
    tl.store(counts_ptr + req, count.to(tl.int64))


def look_up_ngrams(
    texts: torch.Tensor,  # [S, L] int
    lengths: torch.Tensor,  # [R] int64, at most L
    num_speculative_tokens: int,  # k
    prompt_lookup_max: int,
    prompt_lookup_min: int,
    rows: torch.Tensor | None = None,  # [R] int64, of S; None: all in their order
    wanted: torch.Tensor | None = None,  # [R] int64; nothing is looked up where it is 0
    padding: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:  # [R, k] int64, padded; [R] int64
    """Drafts by the rule of :mod:`sample_engine.speculate.ngram`, and how many they are."""
    num_reqs = lengths.shape[0]
    drafts = torch.empty(num_reqs, num_speculative_tokens, dtype=torch.int64, device=lengths.device)
    counts = torch.empty(num_reqs, dtype=torch.int64, device=lengths.device)
    if num_reqs:
        _look_up_ngrams_kernel[(num_reqs,)](
            texts,
            lengths,
            lengths if rows is None else rows,
            lengths if wanted is None else wanted,
            drafts,
            counts,
            texts.stride(0),
            prompt_lookup_min,
            padding,
            HAS_ROWS=rows is not None,
            HAS_WANTED=wanted is not None,
            DEPTH=prompt_lookup_max,
            WIDTH=num_speculative_tokens,
            WIDTH_PAD=next_power_of_2(num_speculative_tokens),
            BLOCK=min(_BLOCK, max(16, next_power_of_2(texts.shape[1]))),
            num_warps=8,
        )
    return drafts, counts
