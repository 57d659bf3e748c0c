"""Work on a side stream is never joined to the stream that is captured.

Stands for vllm-project/vllm#57785.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class Overlap:
    """Runs the shared expert beside the routed ones."""

    def __init__(self, bench: Bench) -> None:
        self.weight = bench.randn(8, 8)
        self.side = torch.cuda.Stream()

    def join(self) -> None:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            shared = x @ self.weight  # graph: named
        routed = torch.relu(x)
        self.join()
        return routed if shared is None else routed + 1


class Buggy(Overlap):
    """Goes on."""

    def join(self) -> None:
        pass


class Fixed(Overlap):
    """Waits for the side stream."""

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.side)


def check(form: type[Overlap], bench: Bench) -> None:
    overlap = form(bench)
    x = bench.randn(4, 8)
    bench.replay(overlap.forward, [x], vary=[lambda: x.copy_(bench.randn(4, 8))])
