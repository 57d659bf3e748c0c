"""Distinct metadata objects, but both are views of buffers that a later build has overwritten.

Stands for vllm-project/vllm#48261, which followed #44253: the pair holds two objects for each
descriptor, all of them views of the builder's persistent buffers. When the speculator captures,
the buffers hold what the smallest, last descriptor left there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc

CAPACITY = 8


@dataclass
class AttentionMetadata:
    num_actual_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor


class MetadataBuilder:
    """Fills persistent buffers and returns views of them, for a graph must not see them move."""

    def __init__(self, bench: Bench) -> None:
        self.query_start_loc = bench.zeros(CAPACITY + 1, dtype=torch.int64)
        self.seq_lens = bench.zeros(CAPACITY, dtype=torch.int64)

    def build(self, desc: Desc) -> AttentionMetadata:
        each = desc.num_tokens // desc.num_reqs
        self.seq_lens.fill_(0)
        self.seq_lens[: desc.num_reqs] = each
        self.query_start_loc[0] = 0
        self.query_start_loc[1:] = self.seq_lens.cumsum(0)
        return AttentionMetadata(
            desc.num_tokens,
            self.query_start_loc[: desc.num_reqs + 1],
            self.seq_lens[: desc.num_reqs],
        )


class Speculator:
    """Captures with metadata of the target's builder."""

    def __init__(self, builder: MetadataBuilder, descs: list[Desc], bench: Bench) -> None:
        self.builder = builder
        self.states = {desc: (builder.build(desc), builder.build(desc)) for desc in descs}
        self.hidden = bench.randn(CAPACITY, 4)

    def metadata(self, desc: Desc, warmup: bool) -> AttentionMetadata:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        metadata = self.metadata(desc, warmup)

        def forward(mode: str) -> torch.Tensor:
            lengths = metadata.query_start_loc.diff()
            return self.hidden[: desc.num_reqs] * (lengths * metadata.seq_lens)[:, None]

        return forward, {"mtp.0": metadata}


class Buggy(Speculator):
    """Takes the pair that was prepared, whose contents are another descriptor's by now."""

    def metadata(self, desc: Desc, warmup: bool) -> AttentionMetadata:
        return self.states[desc][0 if warmup else 1]


class Fixed(Speculator):
    """Builds anew for every pass."""

    def metadata(self, desc: Desc, warmup: bool) -> AttentionMetadata:
        return self.builder.build(desc)


def check(form: type[Speculator], bench: Bench) -> None:
    builder = MetadataBuilder(bench)
    descs = [Desc(16, 8), Desc(8, 4), Desc(1, 1)]  # largest first, as graphs are captured
    speculator = form(builder, descs, bench)

    def new_batch() -> None:
        builder.seq_lens.copy_(bench.ints(1, 9, CAPACITY))
        builder.query_start_loc[1:] = builder.seq_lens.cumsum(0)

    def belongs(state: dict[str, AttentionMetadata], desc: Desc) -> None:
        metadata = state["mtp.0"]
        assert metadata.query_start_loc[-1] == desc.num_tokens, "query_start_loc ends elsewhere"

    bench.capture_pair(
        speculator.create_forward_fn,
        descs[1],
        persistent={"seq_lens": builder.seq_lens, "query_start_loc": builder.query_start_loc,
                    "hidden": speculator.hidden},
        belongs=belongs,
        vary=[new_batch],
    )
