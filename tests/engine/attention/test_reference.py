"""The reference backend is exact, and a request's result depends on nothing but the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sample_engine.attention.interface import PAD_SLOT_ID, LayerCache
from sample_engine.attention.reference import ReferenceBackend
from tests.engine.support.attention import Batch, Shape, batch_of, error, run

MIXED = [(7, 7), (1, 40), (3, 18), (20, 33)]
DECODE = [(1, 40), (1, 1), (1, 17)]
DRAFTS = [(4, 40), (4, 4), (4, 33)]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("lengths", [MIXED, DECODE, DRAFTS], ids=["mixed", "decode", "drafts"])
def test_the_result_is_that_of_float64(lengths: list[tuple[int, int]], dtype: torch.dtype) -> None:
    batch = batch_of(Shape(dtype=dtype), lengths)
    out = run(ReferenceBackend(batch.shape.spec), batch)
    assert error(out, batch) < TOLERANCE[dtype]


def _requests() -> st.SearchStrategy[list[tuple[int, int]]]:
    one = st.tuples(st.integers(1, 12), st.integers(0, 30)).map(lambda at: (at[0], at[0] + at[1]))
    return st.lists(one, min_size=1, max_size=5)


@given(
    lengths=_requests(),
    heads=st.sampled_from([(1, 1), (6, 2), (4, 4), (8, 1)]),
    dim=st.sampled_from([2, 24, 32]),
    page=st.sampled_from([1, 4, 16]),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_any_batch_gets_the_right_answer_and_padding_is_left_alone(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    page: int,
    padding: tuple[int, int],
    seed: int,
) -> None:
    shape = Shape(*heads, head_dim=dim, page=page)
    batch = batch_of(shape, lengths, seed=seed, pad_reqs=padding[0], pad_tokens=padding[1])
    out = run(ReferenceBackend(shape.spec), batch, fill=7.0)
    assert error(out, batch) < 1e-6
    assert torch.equal(out[batch.common.num_tokens :], torch.full_like(out, 7.0)[: padding[1]])


def _alone(batch: Batch, index: int, first: int) -> torch.Tensor:
    """The request's last queries from its query ``first``, computed with nobody else."""
    start, stop = batch.common.query_start_loc[index : index + 2].tolist()
    queries = stop - start - first
    alone = batch_of(batch.shape, [(queries, len(batch.keys[index]))])
    slots = _all_slots(alone)
    kv_heads, dim = batch.shape.num_kv_heads, batch.shape.head_dim
    alone.cache.key.view(-1, kv_heads, dim)[slots] = batch.keys[index]
    alone.cache.value.view(-1, kv_heads, dim)[slots] = batch.values[index]
    alone.query.copy_(batch.query[start + first : stop])
    return run(ReferenceBackend(batch.shape.spec), alone)


def _all_slots(batch: Batch) -> torch.Tensor:
    at = torch.arange(int(batch.common.seq_lens[0]))
    page = batch.shape.page
    return batch.common.block_table[0, at // page].long() * page + at % page


@pytest.mark.parametrize("lengths", [MIXED, DECODE, DRAFTS], ids=["mixed", "decode", "drafts"])
def test_a_request_gets_the_same_bits_alone_and_in_company(
    lengths: list[tuple[int, int]],
) -> None:
    batch = batch_of(Shape(6, 2), lengths, seed=3)
    out = run(ReferenceBackend(batch.shape.spec), batch)
    starts = batch.common.query_start_loc.tolist()
    for index in range(len(lengths)):
        together = out[starts[index] : starts[index + 1]]
        assert torch.equal(together, _alone(batch, index, first=0))


@pytest.mark.parametrize("first", [1, 5, 19])
def test_a_chunk_gets_the_same_bits_as_the_whole_prompt(first: int) -> None:
    batch = batch_of(Shape(6, 2), [(20, 33), (1, 9)], seed=4)
    whole = run(ReferenceBackend(batch.shape.spec), batch)[:20]
    assert torch.equal(whole[first:], _alone(batch, 0, first))


def test_queries_that_are_too_many_for_one_pass_are_computed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = batch_of(Shape(), [(40, 50)])
    backend = ReferenceBackend(batch.shape.spec)
    whole = run(backend, batch_of(Shape(), [(40, 50), (1, 2)]))[:40]
    monkeypatch.setattr("sample_engine.attention.kernels.reference._MOST_SCORES", 4 * 50 * 7)
    parts = run(backend, batch_of(Shape(), [(40, 50), (1, 2)]))[:40]
    assert torch.equal(whole, parts)


def test_padded_tokens_are_not_written_to_the_cache() -> None:
    backend = ReferenceBackend(Shape().spec)
    cache = LayerCache(torch.zeros(3, 16, 2, 32), torch.zeros(3, 16, 2, 32))
    key, value = torch.rand(4, 2, 32) + 1, torch.rand(4, 2, 32) + 1
    slots = torch.tensor([17, PAD_SLOT_ID, 40, PAD_SLOT_ID])
    backend.write_kv(key, value, cache, slots)
    for new, old in ((key, cache.key), (value, cache.value)):
        expected = torch.zeros_like(old)
        expected[1, 1], expected[2, 8] = new[0], new[2]
        assert torch.equal(old, expected)


class NoWaiting(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Refuses what a graph could not capture: reading a number back, shapes that depend on data."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse, or go on."""
        del types
        name = func._schema.name
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lengths", [DECODE, DRAFTS], ids=["decode", "drafts"])
def test_a_uniform_batch_never_waits_and_follows_lengths_that_change_in_place(
    lengths: list[tuple[int, int]],
) -> None:
    batch = batch_of(Shape(), lengths, seed=5)
    backend = ReferenceBackend(batch.shape.spec)
    metadata = backend.build(batch.common)
    shorter = batch_of(Shape(), [(1, 3), (1, 1), (1, 12)], seed=6)
    batch.common.seq_lens.copy_(shorter.common.seq_lens)
    batch.common.query_start_loc.copy_(shorter.common.query_start_loc)
    batch.common.block_table[:, :1] = shorter.common.block_table
    cache = LayerCache(
        *(torch.cat([each, each.new_full((12, 16, 2, 32), float("nan"))]) for each in shorter.cache)
    )
    out = torch.full_like(batch.query, 7.0)
    out[:3] = 0
    batch.query[:3] = shorter.query
    with NoWaiting():
        backend.write_kv(
            torch.zeros(3, 2, 32), torch.zeros(3, 2, 32), cache, torch.full((3,), PAD_SLOT_ID)
        )
        backend.forward(batch.query, cache, metadata, out)
    assert error(out[:3], shorter) < 1e-6
    assert torch.equal(out[3:], torch.full_like(out[3:], 7.0))
