"""With several tokens for each request the writer loops over a list of blocks on the host.

Stands for NVIDIA/TensorRT-LLM#17110: replays write to the dummy blocks of the capture. Nothing
crashes, the answers get worse.
"""

import torch
from paged import BLOCK

REQUESTS, QUERY, WIDTH = 2, 3, 8


class Writer:
    """Writes 1 + k keys of each request at the start of its block. Blocks 0 and 1 are dummies."""

    def __init__(self, blocks):
        self.cache = torch.zeros(blocks * BLOCK, WIDTH, device="cuda")
        self.key = torch.zeros(REQUESTS, QUERY, WIDTH, device="cuda")
        self.blocks = torch.tensor([0, 1], device="cuda")
        self.host_blocks = [0, 1]
        self.write(self.key, self.blocks)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.write(self.key, self.blocks)

    def write(self, key, blocks):
        slots = blocks[:, None] * BLOCK + torch.arange(QUERY, device="cuda")
        self.cache[slots.flatten()] = key.flatten(0, 1)

    def __call__(self, key, blocks):
        self.host_blocks = blocks
        on_device = torch.tensor(blocks, device="cuda")
        if len(blocks) != REQUESTS:  # no graph of this size
            self.write(key, on_device)
        else:
            self.key.copy_(key)
            self.blocks.copy_(on_device)
            self.graph.replay()
        return self.cache[2 * BLOCK :].clone()
