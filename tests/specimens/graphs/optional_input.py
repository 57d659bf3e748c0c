"""A batch without the optional input replays with the one of the batch before.

Stands for NVIDIA/TensorRT-LLM#18207, whose repair came with tests that poison static buffers.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

ROWS, WIDTH = 4, 8


class Runner:
    """Fills the static inputs of a step; prompt embeddings are there for some batches only."""

    def __init__(self, bench: Bench) -> None:
        self.static = {"hidden": bench.randn(ROWS, WIDTH), "extra": bench.randn(ROWS, WIDTH)}

    def prepare(self, hidden: torch.Tensor, extra: torch.Tensor | None) -> None:
        self.static["hidden"].copy_(hidden)
        if extra is not None:
            self.static["extra"].copy_(extra)
        else:
            self.omit()

    def omit(self) -> None:
        raise NotImplementedError


class Buggy(Runner):
    """Leaves what is not given."""

    def omit(self) -> None:
        pass


class Fixed(Runner):
    """Writes the value that stands for nothing."""

    def omit(self) -> None:
        self.static["extra"].zero_()


def check(form: type[Runner], bench: Bench) -> None:
    runner = form(bench)
    first, extra, second = (bench.randn(ROWS, WIDTH) for _ in range(3))
    bench.replay(
        lambda hidden, extra: torch.tanh(hidden + extra),
        runner.static,
        refills=True,
        vary=[
            lambda: runner.prepare(first, extra),
            lambda: runner.prepare(second, None),
        ],
    )
