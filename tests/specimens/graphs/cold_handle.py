"""A library's handle is made at the first matrix product, which is within the capture.

Stands for pytorch/pytorch#99397: making the handle does what a capture forbids, and a later error
speaks of a library that is not initialized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


class Handle:
    """Tries the device when it is made, as libraries do."""

    def __init__(self, like: torch.Tensor) -> None:
        self.works = torch.ones_like(like).sum().item() > 0  # graph: named


class Runner:
    """Multiplies by the weights of its head, with a handle that is made when it is needed."""

    def __init__(self, bench: Bench) -> None:
        self.hidden = bench.randn(4, 8)
        self.head = bench.randn(8, 16)
        self.handle: Handle | None = None

    def logits(self) -> torch.Tensor:
        if self.handle is None:
            self.handle = Handle(self.hidden)
        return self.hidden @ self.head

    def dummy_run(self) -> torch.Tensor:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Callable[..., Any], Any]:
        step = self.dummy_run if warmup else self.logits
        return lambda mode: step(), {"hidden": self.hidden}


class Buggy(Runner):
    """The warm-up needs no logits."""

    def dummy_run(self) -> torch.Tensor:
        return self.hidden.clone()


class Fixed(Runner):
    """The warm-up does all that the capture does."""

    def dummy_run(self) -> torch.Tensor:
        return self.logits()


def check(form: type[Runner], bench: Bench) -> None:
    runner = form(bench)
    bench.capture_pair(
        runner.create_forward_fn,
        Desc(4, 4),
        persistent={"hidden": runner.hidden},
        vary=[lambda: runner.hidden.copy_(bench.randn(4, 8))],
    )
