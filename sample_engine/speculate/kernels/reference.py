"""The oracles: for each kernel a function of the same name and arguments in plain torch.

They never wait for the device and have no shape that depends on data.
"""

from __future__ import annotations

import torch

__all__ = ["look_up_ngrams"]


def look_up_ngrams(
    texts: torch.Tensor,  # [S, L] int
    lengths: torch.Tensor,  # [R] int64, at most L
    num_speculative_tokens: int,  # k
    prompt_lookup_max: int,
    prompt_lookup_min: int,
    rows: torch.Tensor | None = None,  # [R] int64, of S; None: all in their order
) -> tuple[torch.Tensor, torch.Tensor]:  # [R, k] int64, padded with -1; [R] int64
    """Drafts by the rule of :mod:`sample_engine.speculate.ngram`, and how many they are."""
    texts = (texts if rows is None else texts[rows]).to(torch.int64)
    num_reqs, size = texts.shape
    device = texts.device
    if size < 2:
        return lengths.new_full((num_reqs, num_speculative_tokens), -1), torch.zeros_like(lengths)
    ends = torch.arange(size - 1, device=device)  # where an earlier occurrence may end
    matches = (ends < (lengths - 1).unsqueeze(-1)).expand(num_reqs, size - 1).clone()
    matched = torch.zeros(num_reqs, size - 1, dtype=torch.int64, device=device)
    for back in range(min(prompt_lookup_max, size - 1)):
        token = texts.gather(1, (lengths - 1 - back).clamp(min=0).unsqueeze(-1))  # [R, 1]
        matches[:, :back] = False
        matches[:, back:] &= texts[:, : size - 1 - back] == token
        matched += matches
    best, end = (matched * size + ends).max(dim=-1)  # the longest; of those the last
    found = best // size >= prompt_lookup_min
    counts = torch.where(found, (lengths - 1 - end).clamp(max=num_speculative_tokens), 0)
    place = torch.arange(num_speculative_tokens, device=device)
    drafts = texts.gather(1, (end.unsqueeze(-1) + 1 + place).clamp(max=size - 1))
    return drafts.masked_fill_(place >= counts.unsqueeze(-1), -1), counts
