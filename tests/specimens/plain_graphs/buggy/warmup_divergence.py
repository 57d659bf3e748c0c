"""Warm-up runs one variant of a kernel, capture launches another that was never warmed up.

Stands for tracel-ai/burn#5772: whether an operation may work in place is decided by who owns the
tensor, and the warm-up's tensor is owned otherwise than the one in capture. A variant loads its
constants when it is launched first.
"""

import torch


class Kernels:
    """The variants of one operation."""

    def __init__(self):
        self.loaded = {}

    def constants(self, variant):
        if variant not in self.loaded:
            self.loaded[variant] = torch.tensor([0.5, 2.0], device="cuda")  # capture: named
        return self.loaded[variant]

    def scale_in_place(self, x):
        scale, limit = self.constants("in place")
        return x.mul_(scale).clamp_(max=limit)

    def scale(self, x):
        scale, limit = self.constants("out of place")
        return (x * scale).clamp(max=limit)

    def launch(self, x, owned):
        return self.scale_in_place(x) if owned else self.scale(x)


class Runner:
    def __init__(self, shape):
        self.kernels = Kernels()
        self.scores = torch.zeros(shape, device="cuda")
        self.kernels.launch(self.scores, owned=True)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.kernels.launch(self.scores, owned=False)

    def __call__(self, scores):
        self.scores.copy_(scores)
        self.graph.replay()
        return self.out.clone()
