"""The forward of a step that was done already returns what is there, so the graph holds nothing.

A variation on kekzl/imp#1417, where the previous step's logits stayed in place because a capture
records and does not execute: here the warm-up of the same step leaves nothing to record.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class Model:
    """Writes logits to a static buffer."""

    def __init__(self, bench: Bench) -> None:
        self.weight = bench.randn(8, 32)
        self.logits = bench.zeros(4, 32)
        self.step = 0
        self.done = -1

    def is_done(self) -> bool:
        raise NotImplementedError

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.is_done():
            torch.mm(hidden, self.weight, out=self.logits)
            self.done = self.step
        return self.logits


class Buggy(Model):
    """A step is done once."""

    def is_done(self) -> bool:
        return self.done == self.step


class Fixed(Model):
    """Whoever asks for a forward gets one."""

    def is_done(self) -> bool:
        return False


def check(form: type[Model], bench: Bench) -> None:
    model = form(bench)
    hidden = bench.randn(4, 8)

    def next_step() -> None:
        model.step += 1
        hidden.copy_(bench.randn(4, 8))

    bench.replay(model.forward, {"hidden": hidden}, vary=[next_step])
