"""Shapes, variants and launches for tests of the attention kernels in Triton's interpreter.

bfloat16 is not here: the interpreter gets it wrong without a word; a GPU test has it. Neither are
races, for the interpreter runs one program after the other, and the kernel in Gluon, which it does
not run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sample_engine.attention.kernels.splits import (
    EvenSplits,
    FixedSplits,
    PlannedSplits,
    Splits,
    partials,
)
from tests.engine.support.attention import Batch, Shape

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
PROMPTS = [(19, 19), (3, 37), (1, 5)]
# Heads in groups of 1, 2, 3, 4 and 8; head sizes with and without padding; pages of each kind: of
# less than a tile, of one, of more.
SHAPES = {
    "groups of 3, page 16": Shape(6, 2, 32, 16),
    "head_dim 40, page 32": Shape(4, 4, 40, 32),
    "float16, groups of 4, page 64": Shape(4, 1, 64, 64, torch.float16),
    "groups of 8, head_dim 48, page 16": Shape(8, 1, 48, 16),
    "float16, groups of 2, head_dim 128, page 128": Shape(2, 1, 128, 128, torch.float16),
    "groups of 3, head_dim 256, page 16": Shape(6, 2, 256, 16),
}
OF_FP8 = {
    "FP8 cache, groups of 2, head_dim 40, page 16": Shape(4, 2, 40, 16, fp8_cache=True),
    "FP8 cache, float16, head_dim 64, page 32": Shape(3, 3, 64, 32, torch.float16, fp8_cache=True),
}
by_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
_PAGED = {**SHAPES, **OF_FP8}
by_paged_shape = pytest.mark.parametrize("shape", _PAGED.values(), ids=_PAGED)


VARIANTS: dict[str, dict[str, Any]] = {
    "pointer": {"block_m": 16, "block_n": 16},
    "packed heads": {"block_m": 32, "block_n": 16, "pack_heads": True},
    "wide keys, heaviest first": {"block_m": 16, "block_n": 32, "tile_major": True},
    "descriptor": {"block_m": 16, "block_n": 16, "variant": "descriptor"},
}


def skip_if_unfit(shape: Shape, variant: str) -> None:
    if variant == "descriptor" and shape.fp8_cache:
        pytest.skip("an FP8 cache is read by pointers")
    if variant == "descriptor" and shape.head_dim & (shape.head_dim - 1):
        pytest.skip("a TMA tile of this head size would reach into the next head")


def run_prefill_contiguous(batch: Batch, **changes: Any) -> torch.Tensor:
    from sample_engine.attention.kernels.prefill import PrefillConfig
    from sample_engine.attention.kernels.prefill_contiguous import prefill_contiguous

    out = torch.full_like(batch.query, float("nan"))
    prefill_contiguous(
        batch.query,
        torch.cat(batch.keys),
        torch.cat(batch.values),
        batch.common.query_start_loc,
        batch.kv_start,
        out,
        batch.shape.spec.scale,
        max_query_len=batch.common.max_query_len,
        config=PrefillConfig(**changes),
    )
    return out


def run_decode(batch: Batch, splits: Splits, max_query_len: int) -> torch.Tensor:
    from sample_engine.attention.kernels.combine_splits import combine_splits
    from sample_engine.attention.kernels.decode_paged import DecodeConfig, decode_paged

    common, shape = batch.common, batch.shape
    starts, lengths = common.query_start_loc, common.seq_lens
    parts, lse = partials(
        splits, lengths.shape[0], max_query_len, shape.num_heads, shape.head_dim, batch.query.device
    )
    parts.fill_(float("nan"))
    lse.fill_(float("nan"))
    out = torch.full_like(batch.query, 7.0)
    decode_paged(
        batch.query,
        batch.cache.key,
        batch.cache.value,
        common.block_table,
        starts,
        lengths,
        out,
        parts,
        lse,
        shape.spec.scale,
        splits,
        config=DecodeConfig(block_n=16),
    )
    combine_splits(parts, lse, starts, lengths, out, splits)
    return out


def planned(batch: Batch) -> PlannedSplits:
    from sample_engine.attention.kernels.plan_decode import plan_decode

    return plan_decode(batch.common.seq_lens, batch.common.query_start_loc, 3, 16, 3)


SPLITS: dict[str, Callable[[Batch], Splits]] = {
    "one split": lambda batch: FixedSplits(64, 1),
    "splits of 16": lambda batch: FixedSplits(16, 3),
    "three equal splits": lambda batch: EvenSplits(3, 16),
    "planned": planned,
}
