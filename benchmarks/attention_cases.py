"""The data of the attention benchmarks, the right answers, and how a kernel is timed.

All of it needs a GPU, but for the shapes.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from types import MappingProxyType

import torch

from sample_engine.attention.interface import AttentionSpec, CommonAttentionMetadata, LayerCache
from sample_engine.attention.kernels import reference
from sample_engine.attention.kernels.fp8_cache import stored_as, take_blocks
from sample_engine.kv_cache.memory import allocate_caches, bytes_per_block

__all__ = [
    "KINDS",
    "DecodeCase",
    "Heads",
    "PrefillCase",
    "Timer",
    "copy_bandwidth",
    "relative_error",
]

_FLUSHED = 256 << 20  # bytes, several times the L2 cache
_COPIED = 2 << 30
_BLOCKS = 4096  # that are filled at a time


@dataclasses.dataclass(frozen=True)
class Heads:
    """A kind of attention layer."""

    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    fp8_cache: bool = False

    def spec(self, page: int, device: torch.device) -> AttentionSpec:
        """What a backend has to compute."""
        heads = (self.num_heads, self.num_kv_heads, self.head_dim)
        return AttentionSpec(*heads, page, self.dtype, device, fp8_cache=self.fp8_cache)


KINDS = MappingProxyType(
    {
        "d64": Heads(32, 8, 64),
        "d256": Heads(16, 4, 256),
        "fp8": Heads(fp8_cache=True),
        "fp8 d256": Heads(16, 4, 256, fp8_cache=True),
    }
)
"""Layers that differ from the usual one, by what their cases are called."""


def _paged(
    lengths: Sequence[int], page: int, heads: Heads, device: torch.device
) -> tuple[LayerCache, torch.Tensor]:
    """A cache of random numbers and a block table of pages in random places."""
    each = -(-max(lengths) // page)
    num_blocks = 1 + len(lengths) * each
    (cache,) = allocate_caches(heads.spec(page, device), 1, num_blocks)
    if device.type == "cpu":  # where kernels are only compiled
        return cache, torch.ones(len(lengths), each, dtype=torch.int32)
    for part in cache:
        for block in range(0, num_blocks, _BLOCKS):
            _fill(part[block : block + _BLOCKS], heads.dtype)
    mixed = 1 + torch.randperm(num_blocks - 1, device=device).int()
    return cache, mixed.view(len(lengths), each)


def _fill(cache: torch.Tensor, dtype: torch.dtype) -> None:
    """Random numbers for some blocks of a cache."""
    for new, place in stored_as(torch.randn(cache.shape, dtype=dtype, device=cache.device), cache):
        place.copy_(new)


def _common(
    queries: Sequence[int], lengths: Sequence[int], table: torch.Tensor, device: torch.device
) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    num_tokens = sum(queries)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        seq_lens=seq_lens.to(device),
        block_table=table,
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        query_start_loc_cpu=starts,
        seq_lens_cpu=seq_lens,
        num_reqs=len(lengths),
        num_tokens=num_tokens,
        max_query_len=max(queries),
        max_seq_len=max(lengths),
    )


class PrefillCase:
    """Whole prompts: the same keys and values in a paged cache and one after the other."""

    def __init__(
        self, lengths: Sequence[int], page: int, device: torch.device, heads: Heads = Heads()
    ) -> None:
        self.lengths, self.page, self.heads = lengths, page, heads
        self.spec = heads.spec(page, device)
        self.cache, table = _paged(lengths, page, heads, device)
        self.common = _common(lengths, lengths, table, device)
        size = (sum(lengths), heads.num_heads, heads.head_dim)
        self.query = torch.empty(size, dtype=heads.dtype, device=device)
        if device.type == "cpu":
            width = (sum(lengths), heads.num_kv_heads, heads.head_dim)
            self.key, self.value = (torch.empty(width, dtype=heads.dtype) for _ in range(2))
        else:
            self.query.normal_()
            self.key, self.value = (self._contiguous(part) for part in self.cache)
        self.out = torch.empty_like(self.query)

    def _contiguous(self, cache: torch.Tensor) -> torch.Tensor:
        table = self.common.block_table
        pages = take_blocks(cache, table.flatten()).view(len(table), -1, *cache.shape[2:])
        parts = [each[:length] for each, length in zip(pages, self.lengths, strict=True)]
        return torch.cat(parts).to(self.heads.dtype)

    @property
    def flops(self) -> float:
        """Multiplications and additions that causal attention needs."""
        heads = self.heads
        pairs = float(sum(length**2 for length in self.lengths))
        return 2.0 * heads.num_heads * heads.head_dim * pairs

    @property
    def even(self) -> bool:
        """Whether all prompts are equally long, as torch's own attention has to have them."""
        return len(set(self.lengths)) == 1

    def batched(self, tensor: torch.Tensor) -> torch.Tensor:
        """As torch's own attention takes it: [requests, heads, length, D]."""
        return tensor.view(len(self.lengths), -1, *tensor.shape[1:]).transpose(1, 2)

    def unbatched(self, out: torch.Tensor) -> torch.Tensor:
        """And back: [T, H, D]; copies nothing if the result lies as the query did."""
        packed: torch.Tensor = out.transpose(1, 2).flatten(0, 1)
        return packed

    def expected(self) -> torch.Tensor:
        """The right answer, worked out in float32."""
        out = torch.empty(self.query.shape, dtype=torch.float32, device=self.query.device)
        starts = self.common.query_start_loc
        reference.prefill_contiguous(
            self.query, self.key, self.value, starts, starts, out, self.spec.scale
        )
        return out


class DecodeCase:
    """One query of each of many sequences in a paged cache."""

    def __init__(
        self, lengths: Sequence[int], page: int, device: torch.device, heads: Heads = Heads()
    ) -> None:
        self.lengths, self.page, self.heads = lengths, page, heads
        self.spec = heads.spec(page, device)
        self.cache, table = _paged(lengths, page, heads, device)
        self.common = _common([1] * len(lengths), lengths, table, device)
        size = (len(lengths), heads.num_heads, heads.head_dim)
        self.query = torch.empty(size, dtype=heads.dtype, device=device)
        if device.type != "cpu":
            self.query.normal_()
        self.out = torch.empty_like(self.query)

    @property
    def bytes(self) -> float:
        """Keys and values, each read once."""
        return float(sum(self.lengths) * bytes_per_block(self.spec, 1) / self.page)

    def expected(self) -> torch.Tensor:
        """The right answer, worked out in float32."""
        out = torch.empty(self.query.shape, dtype=torch.float32, device=self.query.device)
        common = self.common
        reference.prefill_paged(
            self.query, *self.cache, common.block_table, common.query_start_loc_cpu,
            common.seq_lens_cpu, out, self.spec.scale,
        )  # fmt: skip
        return out


class Timer:
    """Times work on the device by events, with an L2 cache that holds nothing of it."""

    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSHED, dtype=torch.int8, device="cuda")

    def milliseconds(self, work: Callable[[], object], rounds: int = 20) -> float:
        """The median time of one call."""
        return statistics.median(self.each(work, rounds))

    def each(self, work: Callable[[], object], rounds: int) -> list[float]:
        """The milliseconds of so many calls."""
        for _ in range(2):
            work()
        pairs = []
        for _ in range(rounds):
            self._flush.zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            stop.record()
            pairs.append((start, stop))
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in pairs]


def copy_bandwidth(timer: Timer) -> float:
    """Bytes a second of a large copy on the device, those read and those written together."""
    source = torch.empty(_COPIED, dtype=torch.int8, device="cuda").random_(-100, 100)
    target = torch.empty_like(source)
    return 2 * _COPIED / (timer.milliseconds(lambda: target.copy_(source)) / 1000)


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference by the norm of the right answer; NaN if there is one in it."""
    return float((out.float() - expected).norm() / expected.norm())
