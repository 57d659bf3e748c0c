"""The longest length is a Python number: the graph keeps the one of its capture.

Stands for vllm-project/vllm#19106, facebookresearch/xformers#968, Dao-AILab/flash-attention#1164
and pytorch/torchtitan#3893.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, paged_attention

ROWS, PAGES, WIDTH = 3, 4, 8


class Attention:
    """Attends to the blocks up to the longest length."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cache = bench.randn((1 + ROWS * PAGES) * BLOCK, WIDTH)
        self.blocks = bench.tensor(bench.shuffled(ROWS * PAGES, 1)).view(ROWS, PAGES)
        self.static = {
            "query": bench.randn(ROWS, WIDTH),
            "seq_lens": bench.zeros(ROWS, dtype=torch.int64),
        }
        self.max_seq_len = 0
        self.prepare([1] * ROWS)  # a capture's dummy lengths

    def prepare(self, lens: list[int]) -> None:
        self.static["seq_lens"].copy_(self.bench.tensor(lens))
        self.max_seq_len = max(lens)

    def longest(self) -> int:
        raise NotImplementedError

    def forward(self, query: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        pages = -(-self.longest() // BLOCK)
        return paged_attention(query, self.cache, self.blocks[:, :pages], seq_lens)


class Buggy(Attention):
    """Looks as far as the batch of the moment goes."""

    def longest(self) -> int:
        return self.max_seq_len


class Fixed(Attention):
    """Looks as far as any batch may go."""

    def longest(self) -> int:
        return BLOCK * PAGES


def check(form: type[Attention], bench: Bench) -> None:
    attention = form(bench)
    bench.replay(
        attention.forward,
        attention.static,
        vary=[
            lambda: attention.prepare([16, *bench.lengths(2, 6, 16)]),
            lambda: attention.prepare(bench.lengths(3, 6, 16)),
        ],
    )
