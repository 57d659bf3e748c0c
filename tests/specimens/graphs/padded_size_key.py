"""Metadata is remembered by the padded number of tokens, not by how they fall into requests.

Stands for vllm-project/vllm#46324: with partial acceptance two batches pad to one size, and the
graph of one reads the offsets of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc


@dataclass
class Metadata:
    num_reqs: int
    query_start_loc: torch.Tensor


class Builder:
    """Remembers what it has built."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.hidden = bench.randn(12, 4)
        self.known: dict[Any, torch.Tensor] = {}

    def key(self, desc: Desc) -> Any:
        raise NotImplementedError

    def build(self, desc: Desc) -> Metadata:
        key = self.key(desc)
        if key not in self.known:
            each = desc.num_tokens // desc.num_reqs
            self.known[key] = self.bench.tensor(range(0, desc.num_tokens + 1, each))
        starts = self.known[key].clone()
        return Metadata(len(starts) - 1, starts)

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, Metadata]:
        metadata = self.build(desc)

        def forward(mode: str) -> torch.Tensor:
            return self.hidden[metadata.query_start_loc[1:] - 1]

        return forward, metadata


class Buggy(Builder):
    """Knows sizes."""

    def key(self, desc: Desc) -> Any:
        return desc.num_tokens


class Fixed(Builder):
    """Knows descriptors."""

    def key(self, desc: Desc) -> Any:
        return desc


def check(form: type[Builder], bench: Bench) -> None:
    builder = form(bench)
    wishes: dict[str, Any] = {
        "persistent": {"hidden": builder.hidden},
        "vary": [lambda: builder.hidden.copy_(bench.randn(12, 4))],
    }
    bench.capture_pair(builder.create_forward_fn, Desc(12, 4), **wishes)  # 1 + 2 drafted tokens
    bench.capture_pair(builder.create_forward_fn, Desc(12, 12), **wishes)  # the same size
