"""The planner's result is kept by ``functools.lru_cache``, under the number of requests.

A variation on vllm-project/vllm#42444: no object of the engine shows that the plan was made in the
warm-up, and eager code reads the same old plan as the replay. Only the work and the memory tell.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


class Backend:
    """Plans from the lengths and attends with the plan."""

    def __init__(self, bench: Bench) -> None:
        self.seq_lens = bench.ints(1, 50, 4)
        self.query = bench.randn(4, 8)
        seq_lens = self.seq_lens

        def plan(num_reqs: int) -> torch.Tensor:
            return torch.rsqrt(seq_lens[:num_reqs].float())  # graph: named

        self.plan = self.kept(plan)

    def kept(self, plan: Any) -> Any:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        state = {"seq_lens": self.seq_lens}

        def forward(mode: str) -> torch.Tensor:
            plan = self.plan(desc.num_reqs)
            return self.query * plan[:, None] + state["seq_lens"][:, None]

        return forward, state


class Buggy(Backend):
    """Keeps what it has planned."""

    def kept(self, plan: Any) -> Any:
        return functools.lru_cache(plan)


class Fixed(Backend):
    """Plans every time."""

    def kept(self, plan: Any) -> Any:
        return plan


def check(form: type[Backend], bench: Bench) -> None:
    backend = form(bench)
    bench.capture_pair(
        backend.create_forward_fn,
        Desc(4, 4),
        persistent={"seq_lens": backend.seq_lens, "query": backend.query},
        vary=[lambda: backend.seq_lens.copy_(bench.ints(50, 99, 4))],
    )
