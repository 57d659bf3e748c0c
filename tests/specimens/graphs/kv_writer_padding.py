"""The KV writer takes the number of tokens from the padded key, and slot -1 is the cache's end.

Stands for vllm-project/vllm#13418: ``reshape_and_cache`` read ``key.size(0)``.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, unchecked

TOKENS, SLOTS, WIDTH = 6, 4 * BLOCK, 8


class Writer:
    """Writes keys to their slots; a padded token's slot is -1. Slot 0 is nobody's."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.static = {
            "key": bench.randn(TOKENS, WIDTH),
            "slot_mapping": bench.tensor(bench.shuffled(SLOTS - 2, 1)[:TOKENS]),
            "cache": bench.randn(SLOTS, WIDTH),
        }
        self.num_tokens = TOKENS

    def prepare(self, count: int) -> None:
        self.num_tokens = count
        slots = self.static["slot_mapping"].fill_(-1)
        slots[:count] = self.bench.tensor(self.bench.shuffled(SLOTS - 2, 1)[:count])

    def slots(self, slot_mapping: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def reshape_and_cache(
        self, key: torch.Tensor, slot_mapping: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        cache[self.slots(slot_mapping)] = key
        return cache[1:] + 0

    def eager(
        self, key: torch.Tensor, slot_mapping: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        return self.reshape_and_cache(key[: self.num_tokens], slot_mapping[: self.num_tokens], cache)


class Buggy(Writer):
    """Trusts the key's length."""

    def slots(self, slot_mapping: torch.Tensor) -> torch.Tensor:
        return unchecked(slot_mapping, SLOTS)


class Fixed(Writer):
    """Skips padded tokens."""

    def slots(self, slot_mapping: torch.Tensor) -> torch.Tensor:
        return slot_mapping.clamp(min=0)


def check(form: type[Writer], bench: Bench) -> None:
    writer = form(bench)
    bench.replay(
        writer.reshape_and_cache,
        writer.static,
        eager=writer.eager,
        vary=[
            lambda: writer.prepare(bench.lengths(1, 1, TOKENS)[0]),
            lambda: writer.prepare(TOKENS),
        ],
    )
