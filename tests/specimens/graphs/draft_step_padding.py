"""The draft step advances padded rows too: length 0 becomes 1, and their key lands in a used block.

Stands for vllm-project/vllm#43682: it needs a batch smaller than the captured size, after a larger
one has left its block table in the padded rows.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, paged_attention, slots_of

ROWS, PAGES, WIDTH = 4, 2, 8


class DraftStep:
    """One step of the drafter over a batch that is padded to the captured size."""

    def __init__(self, bench: Bench) -> None:
        self.static = {
            "hidden": bench.randn(ROWS, WIDTH),
            "cache": bench.randn((1 + ROWS * PAGES) * BLOCK, WIDTH),
            "block_table": bench.zeros(ROWS, PAGES, dtype=torch.int64),
            "seq_lens": bench.zeros(ROWS, dtype=torch.int64),
        }
        self.num_reqs = ROWS
        self.bench = bench

    def prepare(self, blocks: list[list[int]], lens: list[int]) -> int:
        """Fill the rows of these requests; the rows behind them have length 0."""
        self.num_reqs = len(lens)
        self.static["block_table"][: self.num_reqs] = self.bench.tensor(blocks)
        self.static["seq_lens"].fill_(0)
        self.static["seq_lens"][: self.num_reqs] = self.bench.tensor(lens)
        return self.num_reqs

    def write_slots(self, block_table: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def step(
        self,
        hidden: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
    ) -> torch.Tensor:
        cache.index_copy_(0, self.write_slots(block_table, seq_lens), hidden)
        return paged_attention(hidden, cache, block_table, seq_lens + 1)

    def eager(
        self,
        hidden: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
    ) -> torch.Tensor:
        live = slice(0, self.num_reqs)
        out = torch.zeros_like(hidden)
        out[live] = self.step(hidden[live], cache, block_table[live], seq_lens[live])
        return out


class Buggy(DraftStep):
    """Every row writes."""

    def write_slots(self, block_table: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        return slots_of(block_table, seq_lens)  # the block table of a padded row is an old one


class Fixed(DraftStep):
    """A row of length 0 writes to nobody's block."""

    def write_slots(self, block_table: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        return slots_of(block_table, seq_lens) * (seq_lens > 0)


def check(form: type[DraftStep], bench: Bench) -> None:
    draft = form(bench)
    blocks = bench.tensor(bench.shuffled(ROWS * PAGES, start=1)).view(ROWS, PAGES).tolist()
    draft.prepare(blocks, bench.lengths(ROWS, 2, 6))
    bench.replay(
        draft.step,
        draft.static,
        eager=draft.eager,
        # Two requests are left, and the first has been given the block that the fourth had.
        vary=[lambda: draft.prepare([blocks[3], blocks[1]], bench.lengths(2, 2, BLOCK))],
    )
