"""The choice of tiles, warps and splits for the Triton kernels: tables and plain arithmetic.

Nothing is measured when the engine runs: the tables hold what ``benchmarks/sweep_attention.py``
found. It imports triton's configurations alone and asks no device.
"""

from __future__ import annotations

import importlib.metadata

import torch

from sample_engine.attention.interface import AttentionSpec
from sample_engine.attention.kernels.decode_paged import DecodeConfig
from sample_engine.attention.kernels.prefill import PrefillConfig
from sample_engine.attention.kernels.splits import EvenSplits, FixedSplits, UnplannedSplits

__all__ = [
    "decode_config",
    "decode_overlaps",
    "most_decode_queries",
    "overlaps",
    "prefill_config",
    "splits_for",
]

# Whether prefill on Hopper is left to the kernel in Gluon where that fits.
_PREFER_HOPPER = True
_HOPPER_TRITON = "3.6."  # the Triton whose Gluon it is written for

# Whether kernels overlap (see ``kernels.overlap``), and the first generation that can.
_OVERLAP = True
_OVERLAPPING = 9

_WIDE_HEAD = 128  # tiles of larger heads have half as many keys: they fill the shared memory
_MOST_DECODE_ROWS = 64  # query heads times queries in a tile of the decode kernel
_SPLIT_OF_FLOAT32 = 256
_PROGRAMS_AT_ONCE = 2  # of a processor, by their shared memory: a lone request is cut for these
_PROGRAMS_PER_PROCESSOR = 16  # at most: each needs memory for a partial result
_LONG_TEXT = 8192  # tokens; from here on an early start costs more than it brings
_MOST_BLOCKS = 16  # of keys in a piece of a text that is cut no more than it has to be


def prefill_config(
    spec: AttentionSpec, capability: tuple[int, int] | None, *, paged: bool
) -> PrefillConfig:
    """How the prefill kernel is built; ``capability=None`` stands for the interpreter."""
    if capability is None:
        return PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
    wide = spec.head_dim > _WIDE_HEAD
    if spec.dtype == torch.float32:
        return PrefillConfig(32, 16 if wide else 32, num_warps=4, num_stages=2)
    if _PREFER_HOPPER and capability[0] == 9 and _fits_hopper(spec):
        return PrefillConfig(128, 64 if wide else 128, 4, num_stages=2, variant="hopper")
    block_n = 32 if wide else 64
    if capability[0] in (9, 10) or capability == (8, 0):
        return PrefillConfig(128, block_n, num_warps=8, num_stages=3, page_ahead=paged)
    return PrefillConfig(64, block_n, num_warps=4, num_stages=2, page_ahead=paged)


def _fits_hopper(spec: AttentionSpec) -> bool:
    triton = importlib.metadata.version("triton")
    sixteen_bits = spec.dtype in (torch.float16, torch.bfloat16)
    return (
        triton.startswith(_HOPPER_TRITON)
        and sixteen_bits
        and not spec.fp8_cache
        and spec.head_dim in (64, 128, 256)
        and spec.block_size >= 8
    )


def decode_config(spec: AttentionSpec, capability: tuple[int, int] | None) -> DecodeConfig:
    """How the decode kernel is built.

    For float32 all splits have one length: what a request gets then does not depend on the batch.
    """
    if spec.dtype == torch.float32 or capability is None:
        return DecodeConfig(block_n=32, num_warps=4, num_stages=2, split_len=_SPLIT_OF_FLOAT32)
    block_n = 32 if spec.head_dim > _WIDE_HEAD else 64
    return DecodeConfig(block_n=block_n, num_warps=4, num_stages=3)


def overlaps(capability: tuple[int, int] | None) -> bool:
    """Whether the kernels of a decode may start before the one before them has ended."""
    return _OVERLAP and capability is not None and capability[0] >= _OVERLAPPING


def decode_overlaps(num_reqs: int, max_seq_len: int) -> bool:
    """Whether those of a batch's decode may do so, too.

    All programs of a lone request run at once. If they start while another kernel still has its
    place, some processors get three of them and others one, and a long text is read as slowly as
    the fullest processor reads: on an H200 one of 131,072 tokens in 167 us a layer in place of 133,
    one of 32,768 in 50 in place of 42. A short text gains by the early start.
    """
    return num_reqs > 1 or max_seq_len < _LONG_TEXT


def most_decode_queries(spec: AttentionSpec) -> int:
    """Requests with more queries than this are left to prefill."""
    return max(1, _MOST_DECODE_ROWS * spec.num_kv_heads // spec.num_heads)


def splits_for(
    config: DecodeConfig,
    num_kv_heads: int,
    num_reqs: int,
    max_seq_len: int,
    num_processors: int,
) -> UnplannedSplits:
    """Cut sequences so that all processors have work, but not smaller than that takes.

    A lone request has a piece for each program that can begin at once. With many requests pieces
    are there to even out: long texts have several, short ones are left whole. A piece that a
    request does not need costs next to nothing.
    """
    if config.split_len is not None:
        return FixedSplits(config.split_len, max(1, -(-max_seq_len // config.split_len)))
    uncut = num_reqs * num_kv_heads
    at_once = _PROGRAMS_AT_ONCE * num_processors
    most = -(-_PROGRAMS_PER_PROCESSOR * num_processors // uncut)
    unit = max(1, min(_MOST_BLOCKS, _MOST_BLOCKS * uncut // at_once)) * config.block_n
    return EvenSplits(max(1, min(at_once // num_kv_heads, most)), unit)
