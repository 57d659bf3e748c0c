"""What several specimens have in common of an engine: paged attention. There is no bug in it."""

import torch

BLOCK = 4
"""Tokens in a block of the KV cache. Block 0 is nobody's: padded rows may write there."""


def paged_attention(query, cache, block_table, seq_lens):
    """Attend each row's query to the tokens of its blocks.

    Args:
        query: [rows, width].
        cache: [slots, width], keys and values at once.
        block_table: [rows, blocks].
        seq_lens: [rows].

    """
    offsets = torch.arange(BLOCK, device=query.device)
    slots = (block_table[:, :, None] * BLOCK + offsets).flatten(1)
    kept = cache[slots.remainder(len(cache))]  # an address, as a kernel computes it
    places = torch.arange(slots.shape[1], device=query.device)
    scores = torch.einsum("rw,rsw->rs", query, kept)
    scores = scores.masked_fill(places[None] >= seq_lens[:, None], -1e9)
    return torch.einsum("rs,rsw->rw", scores.softmax(-1), kept)


def slots_of(block_table, positions):
    """Return where the token at a position lies: one position for each row of the table."""
    column = (positions // BLOCK).remainder(block_table.shape[1])
    return block_table.gather(1, column[:, None])[:, 0] * BLOCK + positions % BLOCK
