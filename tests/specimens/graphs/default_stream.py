"""A part of the work goes to the default stream, which may not be used while another is captured.

Stands for vllm-project/vllm#43160. Streams exist on a GPU only.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class LoraPath:
    """Adds an adapter's part on a stream it chooses."""

    def __init__(self, bench: Bench) -> None:
        self.weight = bench.randn(8, 8)

    def stream(self) -> torch.cuda.Stream:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self.stream()):
            return x + x @ self.weight  # graph: named


class Buggy(LoraPath):
    """Names the default stream."""

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.default_stream()


class Fixed(LoraPath):
    """Stays where it is called."""

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream()


def check(form: type[LoraPath], bench: Bench) -> None:
    path = form(bench)
    x = bench.randn(4, 8)
    bench.replay(path.forward, [x], vary=[lambda: x.copy_(bench.randn(4, 8))])
