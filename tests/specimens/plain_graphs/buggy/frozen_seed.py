"""A kernel with its own random numbers takes the seed as a Python number.

Stands for pytorch/pytorch#84967: graphs kept the seed of their capture, every replay drew the same.
"""

import torch

MASK = 0x7FFFFFFF


def hashed(counter):
    """Return uniform numbers from counters, as a kernel would (no generator of torch)."""
    mixed = (counter * 1103515245 + 12345) & MASK
    mixed = ((mixed ^ (mixed >> 7)) * 69069 + 1) & MASK
    return (mixed ^ (mixed >> 11)).float() / MASK


class Sampler:
    """Adds Gumbel noise to logits."""

    def __init__(self, seed, shape):
        self.host_seed = seed
        self.device_seed = torch.full((1,), seed, device="cuda")
        self.lanes = torch.arange(shape[0] * shape[1], device="cuda").view(shape) * 7919
        self.logits = torch.zeros(shape, device="cuda")
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def noise(self):
        self.host_seed += 1
        return hashed(self.lanes + self.host_seed)  # capture: named

    def forward(self):
        uniform = self.noise().clamp(1e-6, 1 - 1e-6)
        return self.logits - torch.log(-torch.log(uniform))

    def __call__(self, logits):
        self.logits.copy_(logits)
        self.graph.replay()
        return self.out.clone()
