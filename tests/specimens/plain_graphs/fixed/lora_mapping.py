"""A change of adapters makes a new mapping of tokens to adapters; the graph reads the old one.

Stands for vllm-project/vllm#40038: requests with and without an adapter in one batch are aligned
to blocks by addresses that are stale.
"""

import torch

TOKENS = 6


class LoraLayer:
    """Sorts tokens by adapter, multiplies, and puts them back."""

    def __init__(self, weights):
        self.weights = weights  # [adapters, width, width]
        self.mapping = torch.zeros(TOKENS, dtype=torch.int64, device="cuda")

    def set_mapping(self, mapping):
        self.mapping.copy_(mapping)

    def forward(self, hidden):
        order = torch.argsort(self.mapping, stable=True)
        adapters = self.mapping[order].remainder(len(self.weights))
        done = torch.bmm(hidden[order][:, None], self.weights[adapters])[:, 0]
        return torch.zeros_like(hidden).index_copy_(0, order, done)


class GraphRunner:
    def __init__(self, weights):
        self.layer = LoraLayer(weights)
        self.hidden = torch.zeros(TOKENS, weights.shape[1], device="cuda")
        self.layer.forward(self.hidden)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.layer.forward(self.hidden)

    def __call__(self, hidden, adapters):
        self.layer.set_mapping(torch.tensor(adapters, device="cuda"))
        self.hidden.copy_(hidden)
        self.graph.replay()
        return self.out.clone()
