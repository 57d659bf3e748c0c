"""A change of adapters makes a new mapping of tokens to adapters; the graph reads the old one.

Stands for vllm-project/vllm#40038: requests with and without an adapter in one batch are aligned
to blocks by addresses that are stale.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import unchecked

TOKENS, ADAPTERS, WIDTH = 6, 4, 8


class LoraLayer:
    """Sorts tokens by adapter, multiplies, and puts them back."""

    def __init__(self, bench: Bench) -> None:
        self.weights = bench.randn(ADAPTERS, WIDTH, WIDTH)
        self.mapping = bench.zeros(TOKENS, dtype=torch.int64)
        self.static = {"hidden": bench.randn(TOKENS, WIDTH)}

    def set_mapping(self, mapping: torch.Tensor) -> None:
        raise NotImplementedError

    def align(self) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.argsort(self.mapping, stable=True)
        return order, self.mapping[order]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        order, adapters = self.align()
        out = torch.zeros_like(hidden)
        done = torch.bmm(hidden[order][:, None], self.weights[unchecked(adapters, ADAPTERS)])[:, 0]
        return out.index_copy_(0, order, done)


class Buggy(LoraLayer):
    """Binds the attribute to a new tensor."""

    def set_mapping(self, mapping: torch.Tensor) -> None:
        self.mapping = mapping


class Fixed(LoraLayer):
    """Fills the tensor that is there."""

    def set_mapping(self, mapping: torch.Tensor) -> None:
        self.mapping.copy_(mapping)


def check(form: type[LoraLayer], bench: Bench) -> None:
    layer = form(bench)
    bench.replay(
        layer.forward,
        layer.static,
        vary=[lambda: layer.set_mapping(bench.ints(1, ADAPTERS, TOKENS))],
    )
