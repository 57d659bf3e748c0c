"""The lazily made plan lies on the layer, where no comparison of the two states can see it.

A variation on vllm-project/vllm#42444. The states are distinct and spotless; only the work tells:
kernels that depend on the lengths ran in the warm-up and are not in the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


class Layer:
    """Attends with a plan of how the work is split."""

    def __init__(self) -> None:
        self.plan: torch.Tensor | None = None

    def plan_of(self, seq_lens: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, query: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        plan = self.plan_of(seq_lens)
        return query * plan[:, None] + seq_lens[:, None]  # the lengths are read in any case


class Buggy(Layer):
    """Plans at the first forward and never again."""

    def plan_of(self, seq_lens: torch.Tensor) -> torch.Tensor:
        if self.plan is None:
            self.plan = torch.rsqrt(seq_lens.float())  # graph: named
        return self.plan


class Fixed(Layer):
    """Plans in every forward, so that the graph does."""

    def plan_of(self, seq_lens: torch.Tensor) -> torch.Tensor:
        self.plan = torch.rsqrt(seq_lens.float())
        return self.plan


def check(form: type[Layer], bench: Bench) -> None:
    layer = form()
    seq_lens, query = bench.ints(1, 50, 4), bench.randn(4, 8)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        state = {"seq_lens": seq_lens}
        return lambda mode: layer.forward(query, state["seq_lens"]), state

    bench.capture_pair(
        create_forward_fn,
        Desc(4, 4),
        persistent={"seq_lens": seq_lens, "query": query},
        vary=[lambda: seq_lens.copy_(bench.ints(50, 99, 4))],
    )
