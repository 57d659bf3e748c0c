"""A part of the work goes to the default stream, which may not be used while another is captured.

Stands for vllm-project/vllm#43160. Streams exist on a GPU only.
"""

import torch


class LoraPath:
    """Adds an adapter's part on a stream it chooses."""

    def __init__(self, weight):
        self.weight = weight
        self.x = torch.zeros(4, weight.shape[0], device="cuda")
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def forward(self):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return self.x + self.x @ self.weight  # capture: named

    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
