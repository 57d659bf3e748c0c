"""Which configurations of the attention kernels a sweep tries, and how it calls them.

A sweep has two rounds: the first tries what differs most, the second varies the best of the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from attention_cases import KINDS, DecodeCase, Heads, PrefillCase

from sample_engine.attention.kernels.combine_splits import combine_splits
from sample_engine.attention.kernels.decode_paged import DecodeConfig, decode_paged
from sample_engine.attention.kernels.prefill import PrefillConfig
from sample_engine.attention.kernels.prefill_contiguous import prefill_contiguous
from sample_engine.attention.kernels.prefill_paged import prefill_paged
from sample_engine.attention.kernels.splits import FixedSplits, partials

__all__ = [
    "PARTS",
    "Config",
    "case_of",
    "first_round",
    "second_round",
    "split_part",
    "work_of",
]

Config = PrefillConfig | DecodeConfig

# What is swept, in this order; the kernels in Gluon last, in a process of their own.
PARTS = (
    "contiguous",
    "paged16",
    "decode16",
    "decode128",
    "paged128",
    "hopper contiguous",
    "hopper paged16",
    "hopper paged128",
)
_SPLIT = 1024


def split_part(part: str) -> tuple[str, str]:
    """What is swept, and the kind of heads behind it ("decode16 fp8"); empty: the usual ones."""
    name, _, kind = part.rpartition(" ")
    return (name, kind) if kind in KINDS else (part, "")


def case_of(part: str, device: torch.device) -> PrefillCase | DecodeCase:
    """The data of a part."""
    part, kind = split_part(part)
    page, heads = 128 if part.endswith("128") else 16, KINDS.get(kind, Heads())
    if part.startswith("decode"):
        return DecodeCase([8192] * 64, page, device, heads)
    return PrefillCase([4096] * 4, page, device, heads)


def first_round(part: str) -> list[Config]:
    """What is tried first, the most promising at the top."""
    part, kind = split_part(part)
    if part.startswith("decode"):
        return [
            DecodeConfig(block_n, num_warps, num_stages, split_len=_SPLIT)
            for block_n, num_warps, num_stages in (
                (64, 4, 3), (64, 4, 4), (64, 4, 5), (64, 2, 3), (64, 2, 4), (128, 4, 2),
                (128, 4, 3), (128, 8, 2), (128, 8, 3), (64, 8, 3), (64, 8, 4), (32, 2, 3),
                (32, 2, 4), (32, 2, 6), (32, 1, 4), (32, 1, 6), (32, 4, 4), (64, 1, 3),
                (16, 1, 6),
            )
        ]  # fmt: skip
    if part.startswith("hopper"):
        return [
            PrefillConfig(128, block_n, 4, num_stages, "hopper")
            for block_n, num_stages in ((128, 2), (64, 4), (64, 3), (64, 2), (32, 3), (32, 2))
        ]
    found = [
        PrefillConfig(*sizes, "pointer", page_ahead=part != "contiguous")
        for sizes in (
            (128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 8, 4), (128, 64, 8, 2), (64, 64, 4, 3),
            (128, 128, 8, 3), (64, 128, 4, 2), (64, 64, 4, 2), (128, 32, 8, 4), (64, 32, 4, 4),
        )
    ]  # fmt: skip
    if part != "paged16" and kind != "fp8":
        found[1:1] = [
            PrefillConfig(*sizes, "descriptor", page_ahead=part != "contiguous")
            for sizes in (
                (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 8, 4),
                (64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (128, 64, 8, 2),
            )
        ]  # fmt: skip
    return list(found)


def second_round(best: Config) -> list[Config]:
    """Variations of what was best."""
    change = dataclasses.replace
    if isinstance(best, DecodeConfig):
        return [
            *(change(best, split_len=each) for each in (512, 2048, 4096, 8192)),
            change(best, evict_first=True),
            change(best, evict_first=True, split_len=2048),
            change(best, evict_first=True, split_len=512),
        ]
    if best.variant == "hopper":
        return []
    found = [
        change(best, tile_major=not best.tile_major),
        change(best, pack_heads=True),
        change(best, page_ahead=not best.page_ahead),
        change(best, num_stages=best.num_stages + 1),
        change(best, maxnreg=128 if best.num_warps == 8 else 168),
        change(best, maxnreg=168 if best.num_warps == 8 else 232),
    ]
    return list(found)


def work_of(part: str, case: PrefillCase | DecodeCase, config: Config) -> Callable[[], object]:
    """One call of the kernel of a part, to ``case.out``."""
    if isinstance(case, DecodeCase):
        assert isinstance(config, DecodeConfig), config
        return _decode(case, config)
    assert isinstance(config, PrefillConfig), config
    common, scale = case.common, case.spec.scale
    starts = common.query_start_loc
    if split_part(part)[0].endswith("contiguous"):
        return lambda: prefill_contiguous(
            case.query, case.key, case.value, starts, starts, case.out, scale,
            max_query_len=case.common.max_query_len, config=config,
        )  # fmt: skip
    return lambda: prefill_paged(
        case.query, *case.cache, common.block_table, starts, common.seq_lens, case.out, scale,
        max_query_len=case.common.max_query_len, config=config,
    )  # fmt: skip


def _decode(case: DecodeCase, config: DecodeConfig) -> Callable[[], object]:
    common, heads = case.common, case.heads
    length = config.split_len or _SPLIT
    splits = FixedSplits(length, -(-case.common.max_seq_len // length))
    out, lse = partials(
        splits, len(case.lengths), 1, heads.num_heads, heads.head_dim, case.query.device
    )
    starts, lengths = common.query_start_loc, common.seq_lens

    def work() -> None:
        decode_paged(
            case.query, *case.cache, common.block_table, starts, lengths, case.out, out, lse,
            case.spec.scale, splits, config=config,
        )  # fmt: skip
        combine_splits(out, lse, starts, lengths, case.out, splits)

    return work
