"""Distinct metadata objects, but all are views of buffers that a later build has overwritten.

Stands for vllm-project/vllm#48261: one object for each descriptor, all of them views of the
builder's persistent buffers. A uniform batch is what its graph was captured for, so nobody builds
its metadata again; the buffers hold what the smallest, last descriptor left there.
"""

from dataclasses import dataclass

import torch

CAPACITY = 8


@dataclass
class AttentionMetadata:
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor


class MetadataBuilder:
    """Fills persistent buffers and returns views of them, for a graph must not see them move."""

    def __init__(self):
        self.query_start_loc = torch.zeros(CAPACITY + 1, dtype=torch.int64, device="cuda")
        self.seq_lens = torch.zeros(CAPACITY, dtype=torch.int64, device="cuda")

    def build(self, num_tokens, num_reqs):
        self.seq_lens.fill_(0)
        self.seq_lens[:num_reqs].fill_(num_tokens // num_reqs)
        self.query_start_loc[1:].copy_(self.seq_lens.cumsum(0))
        return AttentionMetadata(self.query_start_loc[: num_reqs + 1], self.seq_lens[:num_reqs])


class Speculator:
    """Captures a graph for each uniform batch; descriptors are (tokens, requests)."""

    def __init__(self, descs, width):
        self.builder = MetadataBuilder()
        self.hidden = torch.zeros(CAPACITY, width, device="cuda")
        self.states = {desc: self.builder.build(*desc) for desc in descs}
        self.graphs = {}
        for desc in descs:
            metadata = self.states[desc]
            self.forward(metadata)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.forward(metadata)
            self.graphs[desc] = graph, out

    def forward(self, metadata):
        lengths = metadata.query_start_loc.diff()
        return self.hidden[: len(lengths)] * (lengths * metadata.seq_lens)[:, None]

    def propose(self, desc, hidden):
        self.hidden[: len(hidden)].copy_(hidden)
        graph, out = self.graphs[desc]
        graph.replay()
        return out.clone()
