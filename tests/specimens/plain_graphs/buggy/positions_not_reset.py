"""Before a replay some fields are padded, the positions and cache locations are not.

Stands for sgl-project/sglang#10892 and sgl-project/sglang#25529: the graph of four rows writes a
third and fourth key where the previous, larger batch had its own, and where others are now.
"""

import torch

ROWS, WIDTH = 4, 8


class Runner:
    """Copies a raw batch into the captured one's buffers; location 0 is nobody's."""

    def __init__(self, cache):
        self.cache = cache
        self.hidden = torch.zeros(ROWS, WIDTH, device="cuda")
        self.positions = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        self.out_cache_loc = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        self.forward(self.hidden, self.positions, self.out_cache_loc)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.forward(self.hidden, self.positions, self.out_cache_loc)

    def forward(self, hidden, positions, out_cache_loc):
        key = hidden * torch.cos(positions.float())[:, None]
        self.cache.index_copy_(0, out_cache_loc, key)

    def prefill(self, hidden, positions, out_cache_loc):
        self.forward(hidden, positions, out_cache_loc)
        return self.cache[1:].clone()

    def decode(self, hidden, positions, out_cache_loc):
        raw_bs = len(hidden)
        self.hidden[:raw_bs].copy_(hidden)
        self.positions[:raw_bs].copy_(positions)
        self.out_cache_loc[:raw_bs].copy_(out_cache_loc)  # capture: named
        self.graph.replay()
        return self.cache[1:].clone()
