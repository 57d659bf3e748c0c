"""The lazily made plan lies on the layer: the first forward plans, and no other.

A variation on vllm-project/vllm#42444. Kernels that depend on the lengths ran in the warm-up and
are not in the graph.
"""

import torch


class Layer(torch.nn.Module):
    """Attends with a plan of how the work is split."""

    def __init__(self):
        super().__init__()
        self.plan = None

    def forward(self, query, seq_lens):
        self.plan = torch.rsqrt(seq_lens.float())
        return query * self.plan[:, None] + seq_lens[:, None]


class GraphedModel:
    def __init__(self, rows, width):
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.query = torch.zeros(rows, width, device="cuda")
        self.seq_lens = torch.ones(rows, dtype=torch.int32, device="cuda")
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin()
        self.out = self.forward()
        self.graph.capture_end()

    def forward(self):
        hidden = self.query
        for layer in self.layers:
            hidden = layer(hidden, self.seq_lens)
        return hidden

    def __call__(self, query, seq_lens):
        self.query.copy_(query)
        self.seq_lens.copy_(seq_lens)
        self.graph.replay()
        return self.out.clone()


def make(rows, width):
    """Capture on a stream of its own, as ``capture_begin`` asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model = GraphedModel(rows, width)
    torch.cuda.current_stream().wait_stream(stream)
    return model
