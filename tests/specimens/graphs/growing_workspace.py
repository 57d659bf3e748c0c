"""A workspace grows for a later capture, and frees what an earlier graph writes to.

Stands for vllm-project/vllm#46067 and vllm-project/vllm#45487: the first decode after the capture
faults, or the error appears far away. The repair reserves and locks before anything is captured.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

WIDTH, LARGEST = 16, 64


class Workspace:
    """Scratch memory that all layers and sizes share."""

    def __init__(self, bench: Bench) -> None:
        self.memory = bench.zeros(self.reserved(), WIDTH)

    def reserved(self) -> int:
        raise NotImplementedError

    def rows(self, count: int) -> torch.Tensor:
        if count > self.memory.shape[0]:
            self.memory = self.memory.new_zeros(count, WIDTH)
        return self.memory[:count]  # graph: named

    def split_decode(self, query: torch.Tensor, splits: int) -> torch.Tensor:
        """Attend in so many splits and add up their parts."""
        parts = self.rows(splits * query.shape[0]).view(splits, *query.shape)
        for split in range(splits):
            parts[split] = torch.sin(query * (split + 1))  # graph: named
        return parts.sum(0)


class Buggy(Workspace):
    """Begins small and grows."""

    def reserved(self) -> int:
        return 8


class Fixed(Workspace):
    """Has its largest size before the first capture."""

    def reserved(self) -> int:
        return LARGEST


def check(form: type[Workspace], bench: Bench) -> None:
    workspace = form(bench)
    query, larger = bench.randn(4, WIDTH), bench.randn(LARGEST // 2, WIDTH)
    bench.replay(
        lambda query: workspace.split_decode(query, 2),
        {"query": query},
        interleave=[lambda: workspace.split_decode(larger, 2)],
        vary=[lambda: query.copy_(bench.randn(4, WIDTH))],
    )
