"""The draft step advances padded rows too: length 0 becomes 1, and their key lands in a used block.

Stands for vllm-project/vllm#43682: it needs a batch smaller than the captured size, after a larger
one has left its block table in the padded rows.
"""

import torch
from paged import BLOCK, paged_attention, slots_of

ROWS, PAGES, WIDTH = 4, 2, 8


class DraftRunner:
    """One step of the drafter over a batch that is padded to the captured size."""

    def __init__(self, cache):
        self.cache = cache
        self.hidden = torch.zeros(ROWS, WIDTH, device="cuda")
        self.block_table = torch.zeros(ROWS, PAGES, dtype=torch.int64, device="cuda")
        self.seq_lens = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.step()

    def step(self):
        slots = slots_of(self.block_table, self.seq_lens)
        self.cache.index_copy_(0, slots, self.hidden)
        return paged_attention(self.hidden, self.cache, self.block_table, self.seq_lens + 1)

    def __call__(self, hidden, blocks, seq_lens):
        count = len(seq_lens)
        self.hidden[:count].copy_(hidden)
        self.block_table[:count].copy_(blocks)  # capture: named
        self.seq_lens.zero_()
        self.seq_lens[:count].copy_(seq_lens)
        self.graph.replay()
        return self.out[:count].clone()
