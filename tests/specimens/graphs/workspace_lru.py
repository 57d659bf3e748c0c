"""A cache of workspaces evicts one that a live graph still points to.

Stands for NVIDIA/TensorRT-LLM#16176: the more sizes are captured the likelier.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from tests.specimens.graphs.bench import Bench

KEPT, WIDTH = 2, 8


class WorkspaceCache:
    """One workspace for each number of tokens."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.workspaces: OrderedDict[int, torch.Tensor] = OrderedDict()

    def evict(self) -> None:
        raise NotImplementedError

    def fused(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.shape[0]
        if tokens not in self.workspaces:
            self.workspaces[tokens] = self.bench.zeros(tokens, WIDTH)
            self.evict()
        workspace = self.workspaces[tokens]
        workspace.copy_(hidden.square())  # graph: named
        return hidden * torch.rsqrt(workspace.mean(-1, keepdim=True) + 1e-6)


class Buggy(WorkspaceCache):
    """Keeps the last few."""

    def evict(self) -> None:
        while len(self.workspaces) > KEPT:
            self.workspaces.popitem(last=False)


class Fixed(WorkspaceCache):
    """Keeps them all."""

    def evict(self) -> None:
        pass


def check(form: type[WorkspaceCache], bench: Bench) -> None:
    cache = form(bench)
    hidden, others = bench.randn(4, WIDTH), [bench.randn(size, WIDTH) for size in (1, 2, 8)]
    bench.replay(
        cache.fused,
        {"hidden": hidden},
        interleave=[lambda other=other: cache.fused(other) for other in others],
        vary=[lambda: hidden.copy_(bench.randn(4, WIDTH))],
    )
