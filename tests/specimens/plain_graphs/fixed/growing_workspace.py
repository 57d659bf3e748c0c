"""A workspace grows for a later capture, and frees what an earlier graph writes to.

Stands for vllm-project/vllm#46067 and vllm-project/vllm#45487: the first decode after the capture
faults, or the error appears far away. The repair reserves and locks before anything is captured.
"""

import torch

WIDTH, LARGEST = 16, 64


class Workspace:
    """Scratch memory that all layers and sizes share."""

    def __init__(self):
        self.memory = torch.zeros(LARGEST, WIDTH, device="cuda")

    def rows(self, count):
        if count > self.memory.shape[0]:
            self.memory = torch.zeros(count, WIDTH, device="cuda")
        return self.memory[:count]


class Model:
    def __init__(self):
        self.workspace = Workspace()

    def split_decode(self, query, splits=2):
        """Attend in so many splits and add up their parts."""
        parts = self.workspace.rows(splits * query.shape[0]).view(splits, *query.shape)
        for split in range(splits):
            torch.sin(query * (split + 1), out=parts[split])
        return parts.sum(0)


class GraphRunner:
    """Captures a batch size when it first comes."""

    def __init__(self):
        self.model = Model()
        self.graphs = {}

    def capture(self, size):
        query = torch.zeros(size, WIDTH, device="cuda")
        self.model.split_decode(query)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.model.split_decode(query)
        self.graphs[size] = graph, query, out

    def __call__(self, query):
        size = query.shape[0]
        if size not in self.graphs:
            self.capture(size)
        graph, static, out = self.graphs[size]
        static.copy_(query)
        graph.replay()
        return out.clone()
