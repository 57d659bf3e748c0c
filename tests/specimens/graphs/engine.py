"""What several specimens have in common of an engine: descriptors, paged attention, memory.

There is no bug in it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

BLOCK = 4
"""Tokens in a block of the KV cache. Block 0 is nobody's: padded rows may write there."""


class Desc(NamedTuple):
    """What a graph is captured for."""

    num_tokens: int
    num_reqs: int
    uniform: bool = True


def paged_attention(
    query: torch.Tensor,  # [rows, width]
    cache: torch.Tensor,  # [slots, width], keys and values at once
    block_table: torch.Tensor,  # [rows, blocks]
    seq_lens: torch.Tensor,  # [rows]
) -> torch.Tensor:
    """Attend each row's query to the tokens of its blocks."""
    offsets = torch.arange(BLOCK, device=query.device)
    slots = (block_table[:, :, None] * BLOCK + offsets).flatten(1)
    kept = cache[unchecked(slots, cache.shape[0])]
    places = torch.arange(slots.shape[1], device=query.device)
    scores = torch.einsum("rw,rsw->rs", query, kept)
    scores = scores.masked_fill(places[None] >= seq_lens[:, None], -1e9)
    return torch.einsum("rs,rsw->rw", scores.softmax(-1), kept)


def slots_of(block_table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return where the token at a position lies: one position for each row of the table."""
    column = unchecked(positions // BLOCK, block_table.shape[1])
    return block_table.gather(1, column[:, None])[:, 0] * BLOCK + positions % BLOCK


def unchecked(index: torch.Tensor, size: int) -> torch.Tensor:
    """Return an index as a kernel takes it: what is out of range lands in somebody's memory."""
    return index.remainder(size)
