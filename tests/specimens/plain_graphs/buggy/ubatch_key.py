"""The state of a batch in four microbatches is filed under the tokens of the first two.

Stands for vllm-project/vllm#43145: a smaller batch then finds the larger one's state.
"""

import torch


class UBatchWrapper:
    """Captures a graph for each number of tokens that is run in microbatches."""

    def __init__(self, largest, width):
        self.hidden = torch.zeros(largest, width, device="cuda")
        self.graphs = {}

    def forward(self, slices):
        return torch.cat([self.hidden[start:end].softmax(-1) for start, end in slices])

    def capture(self, num_tokens, ubatches):
        each = num_tokens // ubatches
        slices = [(start, start + each) for start in range(0, num_tokens, each)]
        sizes = [end - start for start, end in slices]
        self.forward(slices)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.forward(slices)
        self.graphs[sizes[0] + sizes[1]] = graph, out

    def __call__(self, hidden):
        num_tokens = len(hidden)
        self.hidden[:num_tokens].copy_(hidden)
        if num_tokens not in self.graphs:
            return self.hidden[:num_tokens].softmax(-1)
        graph, out = self.graphs[num_tokens]
        graph.replay()
        return out.clone()
