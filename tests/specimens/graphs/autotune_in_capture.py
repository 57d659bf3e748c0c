"""A kernel is tuned within a capture, because no warm-up has seen its size.

Stands for triton-lang/triton#10596: the tuner waits for the device after each candidate, which ends
the capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc

LARGEST, WIDTH = 8, 4


class Tuner:
    """Squares, by the candidate that is best for the number of rows."""

    def __init__(self) -> None:
        self.best: dict[int, int] = {}

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) not in self.best:
            self.best[len(rows)] = self.tune(rows)
        return rows * rows if self.best[len(rows)] else torch.square(rows)

    def tune(self, rows: torch.Tensor) -> int:
        errors = torch.stack([(torch.square(rows) - rows * rows).abs().max(), rows.new_ones(())])
        return int(errors.argmin().item())  # graph: named


class Runner:
    """Captures a graph for each number of rows."""

    def __init__(self, bench: Bench) -> None:
        self.rows = bench.randn(LARGEST, WIDTH)
        self.square = Tuner()

    def warm_up_with(self, desc: Desc) -> int:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Callable[..., Any], Any]:
        rows = self.rows[: self.warm_up_with(desc) if warmup else desc.num_tokens]
        return lambda mode: self.square(rows), {"rows": rows}


class Buggy(Runner):
    """Warms up with the largest size alone."""

    def warm_up_with(self, desc: Desc) -> int:
        return LARGEST


class Fixed(Runner):
    """Warms up with the size that is captured."""

    def warm_up_with(self, desc: Desc) -> int:
        return desc.num_tokens


def check(form: type[Runner], bench: Bench) -> None:
    runner = form(bench)
    bench.capture_pair(
        runner.create_forward_fn,
        Desc(4, 4),
        persistent=lambda state: [state["rows"]],
        vary=[lambda: runner.rows.copy_(bench.randn(LARGEST, WIDTH))],
    )
