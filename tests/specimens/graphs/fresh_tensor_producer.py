"""What produces a graph's input returns a new tensor at every step.

Stands for vllm-project/vllm#53915 and jcelerier/librediffusion#14: the graph goes on reading the
memory of its capture, which somebody else has by now. It may work for as long as the allocator
happens to return the same address.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class Stage:
    """The inputs of one piece of a pipeline, filled by the piece before."""

    def __init__(self, bench: Bench) -> None:
        self.weight = bench.randn(8, 8)
        self.static = {"hidden": bench.randn(4, 8), "scale": bench.randn(4, 1)}

    def receive(self, hidden: torch.Tensor) -> None:
        raise NotImplementedError

    def forward(self, hidden: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.relu(hidden @ self.weight) * scale


class Buggy(Stage):
    """Takes the tensor it is given."""

    def receive(self, hidden: torch.Tensor) -> None:
        self.static["hidden"] = hidden


class Fixed(Stage):
    """Takes its contents."""

    def receive(self, hidden: torch.Tensor) -> None:
        self.static["hidden"].copy_(hidden)


def check(form: type[Stage], bench: Bench) -> None:
    stage = form(bench)
    bench.replay(
        stage.forward,
        stage.static,
        vary=[
            lambda: stage.receive(bench.randn(4, 8)),
            lambda: stage.static["scale"].copy_(bench.randn(4, 1)),
        ],
    )
