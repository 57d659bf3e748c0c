"""Indexing with a boolean mask asks the device how many are set.

Stands for pytorch/pytorch#78549: sync batch norm skipped empty batches with a mask.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class SyncBatchNorm:
    """Gathers the statistics of several ranks, some of which have no rows."""

    def gather(
        self, sums: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def forward(self, x: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        kept, rows = self.gather(sums, counts)
        return x - kept.sum(0) / rows.sum()


class Buggy(SyncBatchNorm):
    """Drops the empty ranks."""

    def gather(
        self, sums: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = counts > 0
        return sums[mask], counts[mask]  # graph: named


class Fixed(SyncBatchNorm):
    """Lets them weigh nothing."""

    def gather(
        self, sums: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(counts[:, None] > 0, sums, 0.0), counts


def check(form: type[SyncBatchNorm], bench: Bench) -> None:
    norm = form()
    x, sums, counts = bench.randn(6, 4), bench.randn(3, 4), bench.tensor([2, 0, 4])
    bench.replay(
        norm.forward,
        {"x": x, "sums": sums, "counts": counts},
        vary=[lambda: counts.copy_(bench.ints(1, 9, 3)), lambda: x.copy_(bench.randn(6, 4))],
    )
