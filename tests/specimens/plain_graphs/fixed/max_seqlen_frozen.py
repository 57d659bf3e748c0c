"""The longest length is a Python number: the graph keeps the one of its capture.

Stands for vllm-project/vllm#19106, facebookresearch/xformers#968, Dao-AILab/flash-attention#1164
and pytorch/torchtitan#3893.
"""

import torch
from paged import BLOCK, paged_attention

ROWS, PAGES = 3, 4


class Attention:
    """Attends to the blocks up to the longest length."""

    def __init__(self, cache, block_table):
        self.cache, self.block_table = cache, block_table
        self.max_seq_len = 1

    def forward(self, query, seq_lens):
        longest = BLOCK * PAGES
        table = self.block_table[: len(query), : -(-longest // BLOCK)]
        return paged_attention(query, self.cache, table, seq_lens)


class GraphRunner:
    def __init__(self, cache, block_table):
        self.attention = Attention(cache, block_table)
        self.query = torch.zeros(ROWS, cache.shape[1], device="cuda")
        self.seq_lens = torch.ones(ROWS, dtype=torch.int64, device="cuda")  # dummy lengths
        self.attention.forward(self.query, self.seq_lens)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.attention.forward(self.query, self.seq_lens)

    def __call__(self, query, lens):
        self.attention.max_seq_len = max(lens)
        seq_lens = torch.tensor(lens, device="cuda")
        if len(lens) != ROWS:  # no graph of this size
            return self.attention.forward(query, seq_lens)
        self.query.copy_(query)
        self.seq_lens.copy_(seq_lens)
        self.graph.replay()
        return self.out.clone()
