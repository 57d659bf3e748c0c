"""Fresh metadata for each pass, but all of it holds the one scheduler object of the builder.

Stands for vllm-project/vllm#42444: warm-up runs the planner and fills the object, capture takes
the branch that reuses it, the planner's kernel is not recorded, and the replay reads an old plan.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


class SchedMeta:
    """Lazily filled, in slots, as an extension's object would be."""

    __slots__ = ("num_splits", "tile_metadata")

    def __init__(self) -> None:
        self.tile_metadata: torch.Tensor | None = None
        self.num_splits: torch.Tensor | None = None


class DecodeMetadata:
    def __init__(self, seq_lens: torch.Tensor, scheduler: SchedMeta) -> None:
        self.seq_lens = seq_lens
        self.scheduler = scheduler


def flash_mla(query: torch.Tensor, metadata: DecodeMetadata) -> torch.Tensor:
    scheduler = metadata.scheduler
    if scheduler.tile_metadata is None:
        scheduler.num_splits = torch.div(metadata.seq_lens + 15, 16, rounding_mode="floor")
        scheduler.tile_metadata = scheduler.num_splits.cumsum(0)  # graph: named
    assert scheduler.num_splits is not None
    return query * scheduler.tile_metadata[:, None] / scheduler.num_splits[:, None]


class Builder:
    """Builds a decode's metadata from the persistent lengths."""

    def __init__(self, bench: Bench) -> None:
        self.seq_lens = bench.ints(1, 200, 4)
        self.scheduler = SchedMeta()

    def build(self) -> DecodeMetadata:
        raise NotImplementedError


class Buggy(Builder):
    """The scheduler object is the builder's."""

    def build(self) -> DecodeMetadata:
        return DecodeMetadata(self.seq_lens, self.scheduler)


class Fixed(Builder):
    """Each metadata has a scheduler object of its own."""

    def build(self) -> DecodeMetadata:
        return DecodeMetadata(self.seq_lens, SchedMeta())


def check(form: type[Builder], bench: Bench) -> None:
    builder = form(bench)
    query = bench.randn(4, 8)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        state = {"attn_metadata": {"layers.0": builder.build()}}
        return lambda mode: flash_mla(query, state["attn_metadata"]["layers.0"]), state

    bench.capture_pair(
        create_forward_fn,
        Desc(4, 4),
        persistent={"seq_lens": builder.seq_lens, "query": query},
        vary=[
            lambda: builder.seq_lens.copy_(bench.ints(200, 400, 4)),
            lambda: query.copy_(bench.randn(4, 8)),
        ],
    )
