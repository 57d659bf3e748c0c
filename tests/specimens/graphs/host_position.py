"""The position of a step is counted on the host: every replay writes where the capture stood.

A variation on pytorch/pytorch#114844 (what a forward does to Python objects happens at capture,
once). Eager code gives another result at every call, and nothing on the device says why.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

LONGEST, WIDTH = 64, 4


class Decoder:
    """Appends a key to its cache at every step, and attends to all of them."""

    def __init__(self, bench: Bench) -> None:
        self.cache = bench.zeros(LONGEST, WIDTH)
        self.position = 0
        self.device_position = bench.zeros(1, dtype=torch.int64)

    def append(self, key: torch.Tensor) -> None:
        raise NotImplementedError

    def step(self, key: torch.Tensor) -> torch.Tensor:
        self.append(key)
        return self.cache.cumsum(0)


class Buggy(Decoder):
    """Counts with a Python number."""

    def append(self, key: torch.Tensor) -> None:
        self.cache[self.position] = key
        self.position += 1


class Fixed(Decoder):
    """Counts on the device."""

    def append(self, key: torch.Tensor) -> None:
        self.cache.index_copy_(0, self.device_position, key[None])
        self.device_position.add_(1)


def check(form: type[Decoder], bench: Bench) -> None:
    decoder, key = form(bench), bench.randn(WIDTH)
    bench.replay(decoder.step, [key], vary=[lambda: key.copy_(bench.randn(WIDTH))])
