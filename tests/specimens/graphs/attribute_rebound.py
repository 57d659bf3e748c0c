"""The forward binds an attribute to a new tensor; a replay does not.

Stands for pytorch/pytorch#114844: what a forward does to Python objects happens at capture, once.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class RunningMean:
    """Subtracts a mean that follows the input."""

    def __init__(self, bench: Bench) -> None:
        self.mean = bench.zeros(8)

    def update(self, new: torch.Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        self.update(0.5 * self.mean + 0.5 * x.mean(0))
        return x - self.mean


class Buggy(RunningMean):
    """Binds."""

    def update(self, new: torch.Tensor) -> None:
        self.mean = new


class Fixed(RunningMean):
    """Writes in place."""

    def update(self, new: torch.Tensor) -> None:
        self.mean.copy_(new)


def check(form: type[RunningMean], bench: Bench) -> None:
    norm = form(bench)
    x = bench.randn(4, 8)
    bench.replay(
        norm.forward,
        {"x": x, "mean": norm.mean},  # what the forward changes is an input too
        vary=[lambda: x.copy_(bench.randn(4, 8) + 3), lambda: x.copy_(bench.randn(4, 8) - 3)],
    )
