"""Warm-up runs one variant of a kernel, capture launches another that was never warmed up.

Stands for tracel-ai/burn#5772: whether an operation may work in place is decided by who owns the
tensor, and the warm-up's tensor is owned otherwise than the one in capture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


@dataclass
class Batch:
    scores: torch.Tensor
    owned: bool


def normalize(batch: Batch) -> torch.Tensor:
    if batch.owned:
        return torch.softmax(batch.scores, -1)  # graph: named
    weights = torch.exp(batch.scores)
    return weights / weights.sum(-1, keepdim=True)


class Runner:
    """Makes the batch of a pass."""

    def __init__(self, bench: Bench) -> None:
        self.scores = bench.randn(4, 8)

    def batch(self, warmup: bool) -> Batch:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, Batch]:
        batch = self.batch(warmup)
        return lambda mode: normalize(batch), batch


class Buggy(Runner):
    """The warm-up believes the tensor its own."""

    def batch(self, warmup: bool) -> Batch:
        return Batch(self.scores, owned=warmup)


class Fixed(Runner):
    """Both passes take the same decision."""

    def batch(self, warmup: bool) -> Batch:
        return Batch(self.scores, owned=False)


def check(form: type[Runner], bench: Bench) -> None:
    runner = form(bench)
    bench.capture_pair(
        runner.create_forward_fn,
        Desc(4, 4),
        persistent={"scores": runner.scores},
        vary=[lambda: runner.scores.copy_(bench.randn(4, 8))],
    )
