"""The state of a batch in four microbatches is filed under the tokens of the first two.

Stands for vllm-project/vllm#43145: a smaller batch then finds the larger one's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


@dataclass
class UBatchState:
    num_tokens: int
    slices: tuple[tuple[int, int], ...]


class UBatchWrapper:
    """Keeps one state for each number of tokens."""

    def __init__(self, bench: Bench) -> None:
        self.hidden = bench.randn(8, 4)
        self.states: dict[int, UBatchState] = {}

    def key(self, sizes: list[int]) -> int:
        raise NotImplementedError

    def prepare(self, desc: Desc, ubatches: int) -> None:
        each = desc.num_tokens // ubatches
        slices = tuple((start, start + each) for start in range(0, desc.num_tokens, each))
        self.states[self.key([each] * ubatches)] = UBatchState(desc.num_tokens, slices)

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, UBatchState]:
        filed = self.states[desc.num_tokens]
        state = UBatchState(filed.num_tokens, filed.slices)

        def forward(mode: str) -> torch.Tensor:
            return torch.cat([self.hidden[start:end].softmax(-1) for start, end in state.slices])

        return forward, state


class Buggy(UBatchWrapper):
    """Adds up the first two microbatches, which are all there were when this was written."""

    def key(self, sizes: list[int]) -> int:
        return sizes[0] + sizes[1]


class Fixed(UBatchWrapper):
    """Adds up all of them."""

    def key(self, sizes: list[int]) -> int:
        return sum(sizes)


def check(form: type[UBatchWrapper], bench: Bench) -> None:
    wrapper = form(bench)
    wrapper.prepare(Desc(4, 4), ubatches=2)
    wrapper.prepare(Desc(8, 8), ubatches=4)
    bench.capture_pair(
        wrapper.create_forward_fn,
        Desc(4, 4),
        persistent={"hidden": wrapper.hidden},
        vary=[lambda: wrapper.hidden.copy_(bench.randn(8, 4))],
    )
