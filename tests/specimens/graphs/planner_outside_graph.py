"""The tile scheduler runs where the metadata is built, outside the graph.

Stands for vllm-project/vllm#36611: every replay reads the plan of the lengths at capture.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc

TILE = 16


def get_mla_metadata(seq_lens: torch.Tensor) -> torch.Tensor:
    """Plan how many tiles each sequence gets."""
    return torch.div(seq_lens + TILE - 1, TILE, rounding_mode="floor")


class Backend:
    """Decodes with FP8 weights and a plan."""

    def __init__(self, bench: Bench) -> None:
        self.seq_lens = bench.ints(1, 64, 4)
        self.query = bench.randn(4, 8)

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        raise NotImplementedError


class Buggy(Backend):
    """Plans in the builder."""

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        state = {"seq_lens": self.seq_lens, "tiles": get_mla_metadata(self.seq_lens)}
        return lambda mode: self.query * state["tiles"][:, None], state


class Fixed(Backend):
    """Plans in the forward, which is captured."""

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        state = {"seq_lens": self.seq_lens}
        return lambda mode: self.query * get_mla_metadata(state["seq_lens"])[:, None], state


def check(form: type[Backend], bench: Bench) -> None:
    backend = form(bench)
    bench.capture_pair(
        backend.create_forward_fn,
        Desc(4, 4),
        persistent={"seq_lens": backend.seq_lens, "query": backend.query},
        vary=[lambda: backend.seq_lens.copy_(bench.ints(65, 400, 4))],
    )
