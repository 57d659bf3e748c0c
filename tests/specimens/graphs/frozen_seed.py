"""A kernel with its own random numbers takes the seed as a Python number.

Stands for pytorch/pytorch#84967: graphs kept the seed of their capture, every replay drew the same.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

MASK = 0x7FFFFFFF


def hashed(counter: torch.Tensor) -> torch.Tensor:
    """Return uniform numbers from counters, as a kernel would (no generator of torch)."""
    mixed = (counter * 1103515245 + 12345) & MASK
    mixed = ((mixed ^ (mixed >> 7)) * 69069 + 1) & MASK
    return (mixed ^ (mixed >> 11)).float() / MASK


class Sampler:
    """Adds Gumbel noise to logits and takes the largest."""

    def __init__(self, bench: Bench) -> None:
        self.lanes = torch.arange(64, device=bench.device).view(4, 16) * 7919
        self.device_seed = bench.ints(1, 1 << 20, 1)
        self.host_seed = int(self.device_seed)

    def noise(self) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        uniform = self.noise().clamp(1e-6, 1 - 1e-6)
        return logits - torch.log(-torch.log(uniform))


class Buggy(Sampler):
    """Counts on the host."""

    def noise(self) -> torch.Tensor:
        self.host_seed += 1
        return hashed(self.lanes + self.host_seed)


class Fixed(Sampler):
    """Counts on the device, within the graph."""

    def noise(self) -> torch.Tensor:
        self.device_seed.add_(1)
        return hashed(self.lanes + self.device_seed)


def check(form: type[Sampler], bench: Bench) -> None:
    sampler = form(bench)
    logits = bench.randn(4, 16)
    bench.replay(
        sampler.forward, [logits], rng=True, vary=[lambda: logits.copy_(bench.randn(4, 16))]
    )
