"""A host buffer that a graph copies from is given to the next run of another shape.

Stands for microsoft/onnxruntime#32121: the graph's copy reads a recycled block. It shows only after
a run of another shape in between.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

WORDS = 8


class Staging:
    """Pinned host memory, filled on the host when a shape is seen, copied to the device."""

    def __init__(self, bench: Bench) -> None:
        self.pinned = bench.backend == "cuda"
        self.blocks: dict[object, torch.Tensor] = {}
        self.filled_for: dict[object, int] = {}
        self.device = bench.device

    def block_of(self, columns: int) -> object:
        raise NotImplementedError

    def offsets(self, columns: int) -> torch.Tensor:
        """Return where each row of this shape begins, on the host."""
        block = self.block_of(columns)
        if block not in self.blocks:
            self.blocks[block] = torch.zeros(WORDS, pin_memory=self.pinned)
        if self.filled_for.get(block) != columns:
            self.blocks[block].copy_(torch.arange(WORDS) * columns)
            self.filled_for[block] = columns
        return self.blocks[block]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        on_device = torch.empty(WORDS, device=self.device)
        on_device.copy_(self.offsets(x.shape[1]), non_blocking=True)
        return x + on_device[: x.shape[0], None]


class Buggy(Staging):
    """One block for whoever comes."""

    def block_of(self, columns: int) -> object:
        return "any"


class Fixed(Staging):
    """A shape keeps its block."""

    def block_of(self, columns: int) -> object:
        return columns


def check(form: type[Staging], bench: Bench) -> None:
    staging = form(bench)
    x, other = bench.randn(4, 6), bench.randn(4, 3)
    bench.replay(
        staging.forward,
        {"x": x},
        interleave=[lambda: staging.forward(other)],
        vary=[lambda: x.copy_(bench.randn(4, 6))],
    )
