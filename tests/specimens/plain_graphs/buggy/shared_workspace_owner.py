"""Retiring one graph frees the workspace that all graphs of its generation use.

Stands for vllm-project/vllm-omni#6587: the bucket that was captured first owns the workspace, and
the least recently used bucket is reset alone.
"""

from collections import OrderedDict

import torch

KEPT, LARGEST, WIDTH = 3, 64, 8


class Bucket:
    """A graph of one size, and the workspace if it is the first."""

    def __init__(self, size, workspace, owned):
        self.hidden = torch.zeros(size, WIDTH, device="cuda")
        self.workspace = workspace if owned else None
        forward = lambda: self.forward(workspace[:size])  # noqa: E731
        forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = forward()

    def forward(self, scratch):
        torch.exp(self.hidden, out=scratch)  # capture: named
        return self.hidden + scratch.cumsum(0)  # capture: named


class Buckets:
    """Graphs by size, of which the least recently used is retired."""

    def __init__(self):
        self.buckets = OrderedDict()

    def open(self, size):
        shared = [one.workspace for one in self.buckets.values() if one.workspace is not None]
        if shared:
            return Bucket(size, shared[0], owned=False)
        workspace = torch.zeros(LARGEST, WIDTH, device="cuda")
        return Bucket(size, workspace, owned=True)

    def __call__(self, hidden):
        size = len(hidden)
        if size not in self.buckets:
            self.buckets[size] = self.open(size)
        self.buckets.move_to_end(size)
        while len(self.buckets) > KEPT:
            _, retired = self.buckets.popitem(last=False)
            retired.graph.reset()
            del retired
        bucket = self.buckets[size]
        bucket.hidden.copy_(hidden)
        bucket.graph.replay()
        return bucket.out.clone()
