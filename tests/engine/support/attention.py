"""Batches for attention tests, and the answer that they must get.

The answer is worked out in float64 by torch's own attention, sequence by sequence, from keys and
values that never were in a cache. What was never written to the cache is NaN: a backend that lets
it in is found out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from sample_engine.attention import registry
from sample_engine.attention.interface import (
    PAD_SLOT_ID,
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)
from sample_engine.attention.kernels.fp8_cache import (
    allocate,
    dequantize,
    exponents_of,
    quantize,
    stored_as,
)

__all__ = [
    "BACKENDS",
    "Batch",
    "Shape",
    "attention_in_float64",
    "batch_of",
    "empty_cache",
    "error",
    "run",
]

BACKENDS = list(registry._BACKENDS)  # by name, whether or not they can run here


@dataclasses.dataclass(frozen=True)
class Shape:
    """Heads and pages of a batch."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    page: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    fp8_cache: bool = False

    @property
    def spec(self) -> AttentionSpec:
        """What a backend is asked to compute."""
        return AttentionSpec(
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.page,
            self.dtype,
            torch.device(self.device),
            fp8_cache=self.fp8_cache,
        )


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sequences in a cache, and the queries of a step at their ends."""

    shape: Shape
    query: torch.Tensor  # [T', H, D]
    keys: list[torch.Tensor]  # [L, K, D] each, as they are in the cache
    values: list[torch.Tensor]
    cache: LayerCache
    common: CommonAttentionMetadata
    expected: torch.Tensor  # [T, H, D] float64

    @property
    def kv_start(self) -> torch.Tensor:
        """Where each sequence starts if they lie one after the other: [R' + 1] int32."""
        lengths = self.common.seq_lens
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()


def attention_in_float64(
    query: torch.Tensor,  # [n, H, D]
    key: torch.Tensor,  # [L, K, D]
    value: torch.Tensor,  # [L, K, D]
) -> torch.Tensor:
    """Causal attention of the last n of L positions: [n, H, D]."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (each.double().transpose(0, 1) for each in (query, key, value))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    count, length = q.shape[1], k.shape[1]
    seen = torch.ones(count, length, dtype=torch.bool, device=q.device).tril(length - count)
    mixed = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], seen)
    return mixed[0].transpose(0, 1)


def batch_of(
    shape: Shape,
    lengths: Sequence[tuple[int, int]],  # of each request: (queries, keys)
    *,
    seed: int = 0,
    pad_reqs: int = 0,
    pad_tokens: int = 0,
    unwritten: float = float("nan"),
) -> Batch:
    """A batch of random numbers whose pages lie in random places of the cache."""
    rng = torch.Generator().manual_seed(seed)
    device = torch.device(shape.device)
    heads, kv_heads, dim, page = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.page

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=rng).to(shape.dtype).to(device)

    queries, keys = [n for n, _ in lengths], [length for _, length in lengths]
    num_tokens, num_reqs = sum(queries), len(lengths)
    query = numbers(num_tokens + pad_tokens, heads, dim)
    all_keys = [numbers(length, kv_heads, dim) for length in keys]
    all_values = [numbers(length, kv_heads, dim) for length in keys]
    if shape.fp8_cache:  # what is in the cache is what counts; test_fp8_cache has the rounding
        all_keys, all_values = (
            [dequantize(*quantize(rows)).to(shape.dtype) for rows in each]
            for each in (all_keys, all_values)
        )
    table, num_blocks = _block_table(keys, page, num_reqs + pad_reqs, rng)
    cache = empty_cache(shape, num_blocks, unwritten)
    slots = [_slots(table[index], length, page) for index, length in enumerate(keys)]
    for index in range(num_reqs):
        at = slots[index].to(device)
        for rows, pages in ((all_keys[index], cache.key), (all_values[index], cache.value)):
            for new, place in stored_as(rows, pages):
                place[at // page, at % page] = new
    expected = [
        attention_in_float64(part, k, v)
        for part, k, v in zip(query[:num_tokens].split(queries), all_keys, all_values, strict=True)
    ]
    new = [slot[len(slot) - n :] for slot, n in zip(slots, queries, strict=True)]
    padding = torch.full((pad_tokens,), PAD_SLOT_ID, dtype=torch.int64)
    common = _common(queries, keys, pad_reqs, table, torch.cat([*new, padding]), device)
    return Batch(shape, query, all_keys, all_values, cache, common, torch.cat(expected))


def empty_cache(shape: Shape, num_blocks: int, fill: float = float("nan")) -> LayerCache:
    """A cache that holds one number everywhere; of FP8 it is NaN."""
    size = (num_blocks, shape.page, shape.num_kv_heads, shape.head_dim)
    if not shape.fp8_cache:
        key, value = torch.full((2, *size), fill, dtype=shape.dtype).to(shape.device)
        return LayerCache(key, value)
    cache = LayerCache(*(allocate(*size, torch.device(shape.device)) for _ in range(2)))
    for each in cache:
        exponents_of(each).fill_(255)
    return cache


def _block_table(
    keys: Sequence[int], page: int, rows: int, rng: torch.Generator
) -> tuple[torch.Tensor, int]:
    """Pages of all requests, mixed up, and how many blocks the cache has; block 0 is nobody's."""
    counts = [-(-length // page) for length in keys]
    num_blocks = 1 + sum(counts) + 2
    free = (torch.randperm(num_blocks - 1, generator=rng) + 1).tolist()
    table = torch.zeros(rows, max([*counts, 1]), dtype=torch.int32)
    for index, count in enumerate(counts):
        table[index, :count] = torch.tensor([free.pop() for _ in range(count)])
    return table, num_blocks


def _slots(blocks: torch.Tensor, length: int, page: int) -> torch.Tensor:
    at = torch.arange(length)
    return blocks[at // page].long() * page + at % page


def _common(
    queries: Sequence[int],
    keys: Sequence[int],
    pad_reqs: int,
    table: torch.Tensor,
    slots: torch.Tensor,
    device: torch.device,
) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *queries, *[0] * pad_reqs]).cumsum(0).int()
    seq_lens = torch.tensor([*keys, *[0] * pad_reqs], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        seq_lens=seq_lens.to(device),
        block_table=table.to(device),
        slot_mapping=slots.to(device),
        query_start_loc_cpu=starts,
        seq_lens_cpu=seq_lens,
        num_reqs=len(queries),
        num_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(keys),
    )


def run(backend: AttentionBackend, batch: Batch, fill: float = float("nan")) -> torch.Tensor:
    """What a backend computes for all tokens of a batch: [T', H, D]."""
    out = torch.full_like(batch.query, fill)
    backend.forward(batch.query, batch.cache, backend.build(batch.common), out)
    return out


def error(out: torch.Tensor, batch: Batch) -> float:
    """The largest difference to the right answer; NaN if there is one in it."""
    return float((out[: batch.common.num_tokens].double() - batch.expected).abs().max())
