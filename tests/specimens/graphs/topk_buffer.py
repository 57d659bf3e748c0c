"""The indexer's output is fresh memory at every forward, of which it fills a part.

Stands for NVIDIA/TensorRT-LLM#16290: in a shared pool fresh memory holds what another graph left;
the persistent buffer holds -1 behind the valid entries.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

ROWS, KEPT, WIDE, KEYS = 3, 4, 8, 20


class Indexer:
    """Chooses the keys of sparse attention."""

    def __init__(self, bench: Bench) -> None:
        self.values = bench.randn(KEYS)
        self.buffer = torch.full((ROWS, WIDE), -1, device=bench.device)

    def output(self) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        chosen = self.output()
        chosen[:, :KEPT] = scores.topk(KEPT).indices
        gathered = self.values[chosen.clamp(0, KEYS - 1)]
        return torch.where(chosen >= 0, gathered, 0.0).sum(-1)


class Buggy(Indexer):
    """Allocates."""

    def output(self) -> torch.Tensor:
        return torch.empty(ROWS, WIDE, dtype=torch.int64, device=self.values.device)  # graph: named


class Fixed(Indexer):
    """Keeps one buffer."""

    def output(self) -> torch.Tensor:
        return self.buffer


def check(form: type[Indexer], bench: Bench) -> None:
    indexer = form(bench)
    scores = bench.randn(ROWS, KEYS)
    bench.replay(
        indexer.forward, [scores], vary=[lambda: scores.copy_(bench.randn(ROWS, KEYS))]
    )
