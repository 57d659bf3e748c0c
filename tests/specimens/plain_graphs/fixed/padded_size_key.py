"""Metadata and graphs are remembered by the padded number of tokens, not by how they are split.

Stands for vllm-project/vllm#46324: with partial acceptance two batches pad to one size, and the
graph of one reads the offsets of the other.
"""

import torch


class Builder:
    """Remembers what it has built. All requests of a batch have the same number of tokens."""

    def __init__(self):
        self.known = {}

    def build(self, key, num_tokens, num_reqs):
        if key not in self.known:
            each = num_tokens // num_reqs
            self.known[key] = torch.tensor(range(0, num_tokens + 1, each), device="cuda")
        return self.known[key]


class GraphManager:
    def __init__(self, capacity, width):
        self.builder = Builder()
        self.hidden = torch.zeros(capacity, width, device="cuda")
        self.graphs = {}

    def forward(self, query_start_loc):
        return self.hidden[query_start_loc[1:] - 1]

    def __call__(self, hidden, num_reqs):
        num_tokens = len(hidden)
        key = (num_tokens, num_reqs)
        self.hidden[:num_tokens].copy_(hidden)
        query_start_loc = self.builder.build(key, num_tokens, num_reqs)
        if key not in self.graphs:
            self.forward(query_start_loc)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.forward(query_start_loc)
            self.graphs[key] = graph, out
        graph, out = self.graphs[key]
        graph.replay()
        return out.clone()
