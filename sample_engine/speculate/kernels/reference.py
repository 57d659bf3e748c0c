"""The oracles: for each kernel a function of the same name and arguments in plain torch.

They never wait for the device and have no shape that depends on data.
"""

from __future__ import annotations

import torch

from sample_engine.batch.draft_tensors import NextStep

__all__ = [
    "accept",
    "append",
    "certain_ends",
    "look_up_ngrams",
    "place_passes",
    "write_next_step",
]


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
    texts = (texts if rows is None else texts[rows]).to(torch.int64)
    if wanted is not None:
        lengths = torch.where(wanted > 0, lengths, 0)
    num_reqs, size = texts.shape
    device = texts.device
    if size < 2:
        return (
            lengths.new_full((num_reqs, num_speculative_tokens), padding),
            torch.zeros_like(lengths),
        )
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
    return drafts.masked_fill_(place >= counts.unsqueeze(-1), padding), counts


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
    place = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    rows = (first_rows.unsqueeze(-1) + place).clamp_(max=found.shape[1] - 1)
    choice, told = found
    judged = rows[:, :-1]
    right = choice[judged] == drafts if accepted is None else accepted[judged]
    exists = (place[:-1] < num_drafts.unsqueeze(-1)) & samples.unsqueeze(-1)
    num_accepted = (right & exists).to(torch.int64).cumprod(dim=1).sum(dim=1)
    num_sampled = torch.where(samples, num_accepted + 1, 0)
    tokens = told[rows]
    counts = (place[:-1] < num_accepted.unsqueeze(-1)) & (tokens[:, :-1] != not_finite)
    tokens[:, :-1] = torch.where(counts, drafts, tokens[:, :-1])
    return tokens.masked_fill_(place >= num_sampled.unsqueeze(-1), -1), num_sampled


def append(
    texts: torch.Tensor,  # [S, L] int64, written; the last column is for what is nobody's
    rows: torch.Tensor,  # [R] int64, of the S
    lengths: torch.Tensor,  # [R] int64
    tokens: torch.Tensor,  # [R, k + 1] int64
    num_sampled: torch.Tensor,  # [R] int64
) -> torch.Tensor:  # [R] int64
    """Write what is certain behind the texts; how long they are then."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    there = place < num_sampled.unsqueeze(-1)
    places = torch.where(there, lengths.unsqueeze(-1) + place, texts.shape[1] - 1)
    texts[rows.unsqueeze(-1), places] = tokens.clamp(min=0)
    return lengths + num_sampled


def certain_ends(
    texts: torch.Tensor,  # [S, L] int64
    token_rows: torch.Tensor,  # [T] int64, of the S
    positions: torch.Tensor,  # [T] int64
    query_start_loc: torch.Tensor,  # [R + 1] int32
    num_drafts: torch.Tensor,  # [R] int64
    num_sampled: torch.Tensor,  # [R] int64
) -> tuple[torch.Tensor, torch.Tensor]:  # [T] int64, [R] int64
    """The token after each of a step; and which of the T is each request's last certain one."""
    wrong = num_drafts - (num_sampled - 1).clamp(min=0)
    last_tokens = (query_start_loc[1:] - 1 - wrong).clamp(min=0)
    return texts[token_rows, positions + 1], last_tokens


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
    there, num_reqs = seq_lens > 0, seq_lens.shape[0]
    at = positions[last_tokens]
    first[0].copy_(at)
    first[1].copy_(there)
    first[2][1:].copy_(there.cumsum(0))
    steps = torch.arange(1, ahead[0].shape[0] + 1, device=at.device).unsqueeze(-1)
    further = (at + steps).clamp_(max=max_model_len - 1)  # [k - 1, R]
    index = torch.div(further, block_size, rounding_mode="floor")
    block = block_table.gather(1, index.T).T
    slots = block * block_size + (further - index * block_size)
    ahead[0][:, :num_reqs].copy_(further)
    ahead[1][:, :num_reqs].copy_((further + 1) * there)
    ahead[2][:, :num_reqs].copy_(torch.where((block > 0) & there, slots, pad_slot))


def write_next_step(
    texts: torch.Tensor,  # [S, L] int64; the last row is nobody's
    lengths: torch.Tensor,  # [R] int64
    drafts: torch.Tensor,  # [R, k] int64
    counts: torch.Tensor | None,  # [R] int64; None: k each
    out: NextStep,
    block_size: int,
    longest: int,
    pad_slot: int,
) -> None:
    """Write the step that goes on with these texts and drafts, as ``InputBatch`` would.

    Each request that samples has its last known token and its drafts in it; what has no place in a
    text of the ``longest`` is kept nowhere.
    """
    num_reqs, width = drafts.shape
    nobody, there = texts.shape[0] - 1, out.samples
    num_drafts = torch.where(there, width if counts is None else counts, 0)
    known = torch.where(there, lengths, 0)
    ends = (num_drafts + there).cumsum(0)
    begins = ends - num_drafts - there.to(torch.int64)
    drafted = torch.arange(width, device=drafts.device) < num_drafts.unsqueeze(-1)
    out.token_ids.copy_(torch.where(drafted, drafts, -1))
    at = torch.arange(out.input_ids.shape[0], device=drafts.device)  # [M]
    owner = torch.searchsorted(ends, at, right=True).clamp_(max=num_reqs - 1)
    is_token, place = at < ends[-1], at - begins[owner]
    last = texts[out.rows[owner], (known[owner] - 1).clamp(min=0)]
    ids = torch.where(place == 0, last, drafts[owner, (place - 1).clamp(0, width - 1)])
    position = torch.where(is_token, known[owner] - 1 + place, 0)
    index = torch.div(position.clamp(max=longest - 1), block_size, rounding_mode="floor")
    slot = out.block_table[owner, index].to(torch.int64) * block_size + position % block_size
    out.input_ids.copy_(torch.where(is_token, ids, 0))
    out.positions.copy_(position)
    out.slot_mapping.copy_(torch.where(is_token & (position < longest), slot, pad_slot))
    out.token_rows.copy_(torch.where(is_token, out.rows[owner], nobody))
    out.query_start_loc[1:].copy_(ends)
    out.seq_lens.copy_(known + num_drafts)
    out.lengths.copy_(known)
    out.num_drafts.copy_(num_drafts)
    out.first_rows.copy_(torch.where(there, begins, 0))
