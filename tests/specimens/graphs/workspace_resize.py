"""The workspace's tensor stays, ``resize_`` moves its memory from under the graph.

Stands for flashinfer-ai/flashinfer#4399 (issues #4398 and #4553).
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

WIDTH = 16


class Wrapper:
    """Plans into a workspace of its own, which a larger batch may outgrow."""

    def __init__(self, bench: Bench) -> None:
        self.workspace = bench.zeros(4 * WIDTH)
        self.retired: list[torch.Tensor] = []

    def grow(self, count: int) -> None:
        raise NotImplementedError

    def run(self, query: torch.Tensor) -> torch.Tensor:
        if self.workspace.numel() < query.numel():
            self.grow(query.numel())
        parts = self.workspace[: query.numel()].view_as(query)  # graph: named
        torch.exp(query, out=parts)  # graph: named
        return parts / parts.sum(-1, keepdim=True)


class Buggy(Wrapper):
    """Frees the old memory."""

    def grow(self, count: int) -> None:
        self.workspace.resize_(count)


class Fixed(Wrapper):
    """Keeps what a captured graph may refer to."""

    def grow(self, count: int) -> None:
        self.retired.append(self.workspace)
        self.workspace = torch.zeros(count, device=self.workspace.device)


def check(form: type[Wrapper], bench: Bench) -> None:
    wrapper = form(bench)
    query, larger = bench.randn(4, WIDTH), bench.randn(32, WIDTH)
    bench.replay(
        wrapper.run,
        [query],
        interleave=[lambda: wrapper.run(larger)],
        vary=[lambda: query.copy_(bench.randn(4, WIDTH))],
    )
