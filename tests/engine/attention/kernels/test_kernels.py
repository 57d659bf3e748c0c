"""Each Triton kernel, in Triton's interpreter, against float64 and against its oracle in torch.

bfloat16 is not here: the interpreter gets it wrong without a word; a GPU test has it. Neither are
races, for the interpreter runs one program after the other, and the kernel in Gluon, which it does
not run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.kernels.splits import (
    FixedSplits,
    PlannedSplits,
    Splits,
    item_tensors,
    partials,
)
from tests.engine.support.attention import Batch, Shape, batch_of, error

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")

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
}
by_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def test_keys_and_values_go_to_their_slots_and_padding_nowhere() -> None:
    from sample_engine.attention.kernels.write_kv import write_kv

    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(7, 2, 3, 3, 40, generator=rng)  # as part of a fused projection
    key, value = wide[:, 0, 1], wide[:, 1, 2]
    slots = torch.tensor([5, PAD_SLOT_ID, 63, 16, PAD_SLOT_ID, 17, 40])
    caches = [torch.full((4, 16, 3, 40), float("nan")) for _ in range(4)]
    write_kv(key, value, caches[0], caches[1], slots)
    for cache, new in zip(caches, (key, value), strict=False):
        written = torch.zeros(64, dtype=torch.bool)
        written[slots[slots >= 0]] = True
        assert torch.equal(cache.view(64, 3, 40)[slots[slots >= 0]], new[slots >= 0])
        assert cache.view(64, 3, 40)[~written].isnan().all()
    oracle.write_kv(key, value, caches[2], caches[3], slots)
    assert all(torch.equal(caches[i].nan_to_num(), caches[i + 2].nan_to_num()) for i in range(2))


def test_pages_are_gathered_into_one_piece() -> None:
    from sample_engine.attention.kernels.gather_kv import gather_kv

    batch = batch_of(Shape(6, 3, 40, 16), [(1, 33), (1, 5), (1, 16)])
    out, again = (torch.full((54, 3, 40), float("nan")) for _ in range(2))
    start, table = batch.kv_start, batch.common.block_table
    gather_kv(batch.cache.value, table, start, out, max_seq_len=33)
    oracle.gather_kv(batch.cache.value, table, start, again)
    assert torch.equal(out, torch.cat(batch.values))
    assert torch.equal(out, again)


VARIANTS: dict[str, dict[str, Any]] = {
    "pointer": {"block_m": 16, "block_n": 16},
    "packed heads": {"block_m": 32, "block_n": 16, "pack_heads": True},
    "wide keys, heaviest first": {"block_m": 16, "block_n": 32, "tile_major": True},
    "descriptor": {"block_m": 16, "block_n": 16, "variant": "descriptor"},
}


def _skip_if_unfit(shape: Shape, variant: str) -> None:
    if variant == "descriptor" and shape.head_dim & (shape.head_dim - 1):
        pytest.skip("a TMA tile of this head size would reach into the next head")


@by_shape
@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_over_pages_is_exact(shape: Shape, variant: str) -> None:
    from sample_engine.attention.kernels.prefill import PrefillConfig
    from sample_engine.attention.kernels.prefill_paged import prefill_paged

    _skip_if_unfit(shape, variant)
    config = PrefillConfig(**VARIANTS[variant], page_ahead=variant != "pointer")
    batch = batch_of(shape, PROMPTS, pad_reqs=1, pad_tokens=2)
    common, out = batch.common, torch.full_like(batch.query, 7.0)
    prefill_paged(
        batch.query,
        batch.cache.key,
        batch.cache.value,
        common.block_table,
        common.query_start_loc,
        common.seq_lens,
        out,
        shape.spec.scale,
        max_query_len=common.max_query_len,
        config=config,
    )
    assert error(out, batch) < TOLERANCE[shape.dtype]
    assert torch.equal(out[-2:], torch.full_like(out[-2:], 7.0))


def _prefill_contiguous(batch: Batch, **changes: Any) -> torch.Tensor:
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


@by_shape
@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_without_pages_is_exact(shape: Shape, variant: str) -> None:
    _skip_if_unfit(shape, variant)
    batch = batch_of(shape, PROMPTS)
    out = _prefill_contiguous(batch, **VARIANTS[variant])
    assert error(out, batch) < TOLERANCE[shape.dtype]


def test_chunks_of_a_prompt_get_the_same_bits_as_the_whole() -> None:
    shape = Shape(2, 1, 32)
    whole = batch_of(shape, [(40, 40)], seed=1)
    out = _prefill_contiguous(whole, block_m=16, block_n=16)
    for first in (3, 16, 25):
        chunk = batch_of(shape, [(40 - first, 40)])
        chunk.query.copy_(whole.query[first:])
        chunk.keys[0], chunk.values[0] = whole.keys[0], whole.values[0]
        assert torch.equal(_prefill_contiguous(chunk, block_m=16, block_n=16), out[first:])


def _decode(batch: Batch, splits: Splits, max_query_len: int) -> torch.Tensor:
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


def _planned(batch: Batch) -> PlannedSplits:
    from sample_engine.attention.kernels.plan_decode import plan_decode

    return plan_decode(batch.common.seq_lens, batch.common.query_start_loc, 3, 16, 3)


SPLITS: dict[str, Callable[[Batch], Splits]] = {
    "one split": lambda batch: FixedSplits(64, 1),
    "splits of 16": lambda batch: FixedSplits(16, 3),
    "planned": _planned,
}


@by_shape
@pytest.mark.parametrize("splits", SPLITS)
def test_decode_is_exact_however_keys_are_split(shape: Shape, splits: str) -> None:
    batch = batch_of(shape, [(1, 40), (3, 33), (2, 2), (1, 16)], pad_reqs=1, pad_tokens=1)
    out = _decode(batch, SPLITS[splits](batch), 3)
    assert error(out, batch) < TOLERANCE[shape.dtype]
    assert torch.equal(out[-1], torch.full_like(out[-1], 7.0))


@pytest.mark.parametrize("splits", SPLITS)
def test_decode_leaves_requests_with_more_queries_to_others(splits: str) -> None:
    batch = batch_of(Shape(), [(1, 20), (4, 30), (2, 35)])
    out = _decode(batch, SPLITS[splits](batch), 3)
    assert torch.equal(out[1:5], torch.full_like(out[1:5], 7.0))
    out[1:5] = batch.expected[1:5].float()
    assert error(out, batch) < 1e-5


def test_prefill_leaves_requests_with_fewer_queries_to_others() -> None:
    from sample_engine.attention.kernels.prefill import PrefillConfig
    from sample_engine.attention.kernels.prefill_paged import prefill_paged

    batch = batch_of(Shape(), [(1, 20), (4, 30), (2, 35)])
    common, out = batch.common, torch.full_like(batch.query, 7.0)
    prefill_paged(
        batch.query, batch.cache.key, batch.cache.value, common.block_table,
        common.query_start_loc, common.seq_lens, out, batch.shape.spec.scale, 3,
        max_query_len=4, config=PrefillConfig(16, 16),
    )  # fmt: skip
    assert torch.equal(out[[0, 5, 6]], torch.full_like(out[[0, 5, 6]], 7.0))
    assert (out[1:5].double() - batch.expected[1:5]).abs().max() < 1e-5


@pytest.mark.parametrize("splits", ["splits of 16", "planned"])
def test_the_oracles_of_decode_make_the_same_parts(splits: str) -> None:
    from sample_engine.attention.kernels.combine_splits import combine_splits
    from sample_engine.attention.kernels.decode_paged import DecodeConfig, decode_paged

    batch = batch_of(Shape(6, 2), [(1, 40), (3, 33), (2, 2)])
    common, cut = batch.common, SPLITS[splits](batch)
    starts, lengths, scale = common.query_start_loc, common.seq_lens, batch.shape.spec.scale
    both = [partials(cut, 3, 3, 6, 32, torch.device("cpu")) for _ in range(2)]
    outs = [torch.zeros_like(batch.query) for _ in range(2)]
    given_to_both = (*batch.cache, common.block_table, starts, lengths)
    decode_paged(
        batch.query, *given_to_both, outs[0], *both[0], scale, cut, config=DecodeConfig(16)
    )
    oracle.decode_paged(batch.query, *given_to_both, outs[1], *both[1], scale, cut)
    several = _in_requests_of_several_items(cut, lengths)
    rows = (starts[1:] - starts[:-1])[item_tensors(cut, lengths).item_req[several]]
    for item, count in zip(several.tolist(), rows.tolist(), strict=True):
        torch.testing.assert_close(both[0][0][item, :count], both[1][0][item, :count])
        torch.testing.assert_close(both[0][1][item, :count], both[1][1][item, :count])
    for out, (parts, lse) in zip(outs, both, strict=True):
        combine = combine_splits if out is outs[0] else oracle.combine_splits
        combine(parts, lse, starts, lengths, out, cut)
        assert error(out, batch) < 1e-5


def _in_requests_of_several_items(cut: Splits, lengths: torch.Tensor) -> torch.Tensor:
    owner = item_tensors(cut, lengths).item_req
    counts = torch.bincount(owner[owner >= 0], minlength=len(lengths))
    return ((owner >= 0) & (counts[owner.clamp(min=0)] > 1)).nonzero()[:, 0]


@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 300)).map(lambda at: (at[0], sum(at))),
        min_size=1,
        max_size=6,
    ),
    num_parts=st.integers(1, 9),
    block_n=st.sampled_from([16, 32]),
)
@settings(max_examples=25, deadline=None)
def test_a_plan_covers_each_key_once_and_is_that_of_the_oracle(
    lengths: list[tuple[int, int]], num_parts: int, block_n: int
) -> None:
    from sample_engine.attention.kernels.plan_decode import plan_decode

    starts = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int()
    seq_lens = torch.tensor([keys for _, keys in lengths], dtype=torch.int32)
    plan = plan_decode(seq_lens, starts, 4, block_n, num_parts)
    expected = oracle.plan_decode(seq_lens, starts, 4, block_n, num_parts)
    for got, wanted in zip(plan.tensors, expected.tensors, strict=True):
        assert torch.equal(got, wanted)
    blocks = sum(-(-keys // block_n) for queries, keys in lengths if 1 <= queries <= 4)
    for req, (queries, keys) in enumerate(lengths):
        first, last = plan.first_item[req : req + 2].tolist()
        assert (plan.item_req[first:last] == req).all()
        covered = [
            at
            for item in range(first, last)
            for at in range(int(plan.item_start[item]), int(plan.item_stop[item]))
        ]
        assert covered == (list(range(keys)) if 1 <= queries <= 4 else [])
    longest = (plan.item_stop - plan.item_start).max()
    assert longest <= -(-blocks // num_parts) * block_n


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 40)).map(lambda at: (at[0], sum(at))),
        min_size=1,
        max_size=2,
    ),
    heads=st.sampled_from([(3, 1), (2, 2)]),
    dim=st.sampled_from([32, 40]),
    page=st.sampled_from([16, 32]),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
def test_the_backend_is_exact_on_any_batch(
    requests: list[tuple[int, int]], heads: tuple[int, int], dim: int, page: int, seed: int
) -> None:
    from sample_engine.attention.triton_backend import TritonBackend

    batch = batch_of(Shape(*heads, head_dim=dim, page=page), requests, seed=seed)
    backend = TritonBackend(batch.shape.spec)
    backend.most_queries = 3  # so that both kernels have their part
    out = torch.full_like(batch.query, float("nan"))
    backend.forward(batch.query, batch.cache, backend.build(batch.common), out)
    assert error(out, batch) < 1e-5
