"""Retiring one graph frees the workspace that all graphs of its generation use.

Stands for vllm-project/vllm-omni#6587: the bucket that was captured first owns the workspace, and
the least recently used bucket is reset alone.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

KEPT, WIDTH = 2, 8


class Buckets:
    """Graph buckets by size, which share the first one's workspace."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.owned: dict[int, torch.Tensor | None] = {}

    def open(self, size: int) -> None:
        if size not in self.owned:
            first = not self.owned
            self.owned[size] = self.bench.zeros(64, WIDTH) if first else None
            self.retire()

    def retire(self) -> None:
        raise NotImplementedError

    def run(self, hidden: torch.Tensor) -> torch.Tensor:
        self.open(hidden.shape[0])
        shared = [memory for memory in self.owned.values() if memory is not None]
        if not shared:  # the owner is gone: somebody has to have one
            shared = [self.bench.zeros(64, WIDTH)]
            self.owned[hidden.shape[0]] = shared[0]
        scratch = shared[0][: hidden.shape[0]]  # graph: named
        scratch.copy_(hidden.exp())  # graph: named
        return hidden + scratch.cumsum(0)


class Buggy(Buckets):
    """Lets go of the oldest bucket and of what it owns."""

    def retire(self) -> None:
        while len(self.owned) > KEPT:
            del self.owned[next(iter(self.owned))]


class Fixed(Buckets):
    """The workspace lives as long as the generation."""

    def retire(self) -> None:
        while sum(memory is None for memory in self.owned.values()) > KEPT:
            oldest = next(size for size, memory in self.owned.items() if memory is None)
            del self.owned[oldest]


def check(form: type[Buckets], bench: Bench) -> None:
    buckets = form(bench)
    first, hidden, others = bench.randn(2, WIDTH), bench.randn(4, WIDTH), [3, 5]
    buckets.run(first)  # owns the workspace
    bench.replay(
        buckets.run,
        {"hidden": hidden},
        interleave=[lambda size=size: buckets.run(hidden.new_ones(size, WIDTH)) for size in others],
        vary=[lambda: hidden.copy_(bench.randn(4, WIDTH))],
    )
