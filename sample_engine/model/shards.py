"""Which part of a Llama a rank holds: sizes, and whether a model can be cut so at all.

Heads and the feed-forward part are cut evenly; where there are fewer KV heads than ranks, several
ranks hold the same one. The vocabulary is cut into rows of equal number, the last of which may be
filled up. It imports no torch, so that a front end can ask.
"""

from __future__ import annotations

import dataclasses

from sample_engine.model.config import LlamaConfig

__all__ = ["Shard", "config_of_shard", "why_not_cut"]


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of a model that one of ``size`` ranks holds."""

    rank: int
    size: int

    def part_of(self, count: int) -> slice:
        """Return this rank's even part of so many rows, columns or heads."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def kv_heads_of(self, count: int) -> slice:
        """Return this rank's KV heads: an even part, or the one that its query heads read."""
        if count >= self.size:
            return self.part_of(count)
        head = self.rank * count // self.size
        return slice(head, head + 1)

    def vocabulary_of(self, size: int) -> slice:
        """Return this rank's tokens: fewer than :meth:`rows_of` where that fills up."""
        rows = self.rows_of(size)
        return slice(min(self.rank * rows, size), min((self.rank + 1) * rows, size))

    def rows_of(self, vocab_size: int) -> int:
        """Return how many rows of the vocabulary each rank has, with those that fill up."""
        return -(-vocab_size // self.size)


def why_not_cut(config: LlamaConfig, size: int) -> list[str]:
    """Why a model cannot be cut for so many ranks, a line each; empty: it can."""
    found = [
        f"{name}={count} is no multiple of it"
        for name, count in (
            ("num_attention_heads", config.num_attention_heads),
            ("intermediate_size", config.intermediate_size),
        )
        if count % size
    ]
    kv_heads = config.num_key_value_heads
    if kv_heads % size and size % kv_heads:
        found.append(f"num_key_value_heads={kv_heads} is neither a multiple of it nor a divisor")
    return found


def config_of_shard(config: LlamaConfig, size: int) -> LlamaConfig:
    """The shape of one rank's layers. The vocabulary is that of the whole model."""
    return dataclasses.replace(
        config,
        num_attention_heads=config.num_attention_heads // size,
        num_key_value_heads=max(1, config.num_key_value_heads // size),
        intermediate_size=config.intermediate_size // size,
    )
