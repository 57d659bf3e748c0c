"""With several tokens for each request the writer loops over a list of blocks on the host.

Stands for NVIDIA/TensorRT-LLM#17110: replays write to the dummy blocks of the capture. Nothing
crashes, the answers get worse.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK

REQUESTS, QUERY, SLOTS, WIDTH = 2, 3, 10 * BLOCK, 8


class Writer:
    """Writes 1 + k keys of each request at the start of its block."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.static = {
            "key": bench.randn(REQUESTS, QUERY, WIDTH),
            "blocks": bench.zeros(REQUESTS, dtype=torch.int64),
            "cache": bench.randn(SLOTS, WIDTH),
        }
        self.host_blocks: list[int] = []
        self.prepare([0, 1])

    def prepare(self, blocks: list[int]) -> None:
        self.host_blocks = blocks
        self.static["blocks"].copy_(self.bench.tensor(blocks))

    def write(self, key: torch.Tensor, blocks: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Buggy(Writer):
    """Loops over ``blocks.tolist()`` of the moment."""

    def write(self, key: torch.Tensor, blocks: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        for request, block in enumerate(self.host_blocks):
            cache[block * BLOCK : block * BLOCK + QUERY] = key[request]
        return cache


class Fixed(Writer):
    """Reads the blocks on the device."""

    def write(self, key: torch.Tensor, blocks: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        slots = blocks[:, None] * BLOCK + torch.arange(QUERY, device=blocks.device)
        cache[slots.flatten()] = key.flatten(0, 1)
        return cache


def check(form: type[Writer], bench: Bench) -> None:
    writer = form(bench)
    bench.replay(
        writer.write,
        writer.static,
        rtol=0,
        atol=0,
        vary=[
            lambda: writer.prepare(bench.shuffled(8, start=2)[:REQUESTS]),
            lambda: writer.static["key"].copy_(bench.randn(REQUESTS, QUERY, WIDTH)),
        ],
    )
