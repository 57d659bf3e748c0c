"""The tile scheduler runs where the metadata is built, outside the graph.

Stands for vllm-project/vllm#36611: every replay reads the plan of the lengths at capture.
"""

import torch

TILE = 16


def get_mla_metadata(seq_lens):
    """Plan how many tiles each sequence gets."""
    return torch.div(seq_lens + TILE - 1, TILE, rounding_mode="floor")  # capture: named


class Builder:
    def __init__(self, seq_lens):
        self.seq_lens = seq_lens

    def build(self):
        metadata = {"seq_lens": self.seq_lens}
        metadata["tiles"] = get_mla_metadata(self.seq_lens)
        return metadata


class GraphRunner:
    """Decodes with FP8 weights and a plan."""

    def __init__(self, rows, width):
        self.seq_lens = torch.ones(rows, dtype=torch.int64, device="cuda")
        self.query = torch.zeros(rows, width, device="cuda")
        self.metadata = Builder(self.seq_lens).build()
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def forward(self):
        tiles = self.metadata["tiles"]
        return self.query * tiles[:, None]

    def __call__(self, query, seq_lens):
        self.query.copy_(query)
        self.seq_lens.copy_(seq_lens)
        self.graph.replay()
        return self.out.clone()
