"""The backend for CPUs gives what the oracle gives; sliding windows of both are right."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.attention.interface import PAD_SLOT_ID, LayerCache
from sample_engine.attention.reference import ReferenceBackend
from sample_engine.attention.registry import choose
from sample_engine.attention.sdpa import SdpaBackend
from sample_engine.errors import BackendUnavailableError
from tests.engine.support.attention import Batch, Shape, batch_of, error, run
from tests.engine.support.engine import COUNT, GREEDY, PROMPTS, generate, make_core, plain_tokens
from tests.engine.support.speculation import EAGLE, NGRAM

MIXED = [(7, 7), (1, 40), (3, 18), (20, 33)]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_result_is_that_of_float64(dtype: torch.dtype) -> None:
    batch = batch_of(Shape(dtype=dtype), MIXED)
    assert error(run(SdpaBackend(batch.shape.spec), batch), batch) < TOLERANCE[dtype]


def _requests() -> st.SearchStrategy[list[tuple[int, int]]]:
    one = st.tuples(st.integers(1, 12), st.integers(0, 30)).map(lambda at: (at[0], at[0] + at[1]))
    return st.lists(one, min_size=1, max_size=4)


@given(
    lengths=_requests(),
    heads=st.sampled_from([(1, 1), (6, 2), (8, 1)]),
    page=st.sampled_from([1, 4, 16]),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
@settings(max_examples=40, deadline=None)
def test_any_batch_gets_the_right_answer_and_padding_is_left_alone(
    lengths: list[tuple[int, int]], heads: tuple[int, int], page: int, padding: tuple[int, int]
) -> None:
    shape = Shape(*heads, head_dim=24, page=page)
    batch = batch_of(shape, lengths, pad_reqs=padding[0], pad_tokens=padding[1])
    out = run(SdpaBackend(shape.spec), batch, fill=7.0)
    assert error(out, batch) < 2e-6
    assert torch.equal(out[batch.common.num_tokens :], torch.full_like(out, 7.0)[: padding[1]])


def _in_a_row(batch: Batch) -> Batch:
    """The same batch with the pages of each request one after the other."""
    page, kv_heads, dim = batch.cache.key.shape[1:]
    counts = [-(-len(key) // page) for key in batch.keys]
    table = torch.zeros_like(batch.common.block_table)
    cache = LayerCache(*(torch.full_like(each, float("nan")) for each in batch.cache))
    slots, first = [], 1
    starts = batch.common.query_start_loc.tolist()
    for index, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
        table[index, : counts[index]] = torch.arange(first, first + counts[index])
        for pages, new in zip(cache, (key, value), strict=True):
            pages.view(-1, kv_heads, dim)[first * page : first * page + len(new)] = new
        queries = starts[index + 1] - starts[index]
        slots.append(torch.arange(len(key) - queries, len(key)) + first * page)
        first += counts[index]
    padding = batch.common.slot_mapping[len(torch.cat(slots)) :]
    common = dataclasses.replace(
        batch.common, block_table=table, slot_mapping=torch.cat([*slots, padding])
    )
    return dataclasses.replace(batch, cache=cache, common=common)


@pytest.mark.parametrize("lengths", [[(1, 40)], [(1, 1)], [(6, 40)], [(9, 9)], MIXED], ids=str)
@pytest.mark.parametrize("in_a_row", [True, False])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("window", [None, 5])
def test_writing_and_attending_at_once_is_the_same(
    lengths: list[tuple[int, int]], in_a_row: bool, padding: int, window: int | None
) -> None:
    batch = batch_of(Shape(6, 2, page=4), lengths, pad_tokens=padding)
    if in_a_row:
        batch = _in_a_row(batch)
    if window is not None:
        batch = dataclasses.replace(batch, expected=windowed(batch, window))
    backend = SdpaBackend(dataclasses.replace(batch.shape.spec, window=window))
    starts = batch.common.query_start_loc.tolist()
    new = []
    for each in (batch.keys, batch.values):
        ends = [rows[len(rows) - starts[at + 1] + starts[at] :] for at, rows in enumerate(each)]
        new.append(torch.cat([*ends, torch.full((padding, *each[0].shape[1:]), 9.0)]))
    slots = batch.common.slot_mapping
    for pages in batch.cache:  # they come with the call
        pages.view(-1, *pages.shape[2:])[slots[slots >= 0]] = float("nan")
    metadata = backend.build(batch.common)
    key, value = new
    out = backend.write_and_attend(
        batch.query, key, value, batch.cache, slots, metadata, zeros=True
    )
    assert error(out, batch) < 2e-6
    assert not out[len(out) - padding :].any()


def windowed(batch: Batch, window: int) -> torch.Tensor:
    """What a batch must get where a query sees so many tokens: [T, H, D] float64."""
    parts, starts = [], batch.common.query_start_loc.tolist()
    for index, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
        query = batch.query[starts[index] : starts[index + 1]].double()
        group = query.shape[1] // key.shape[1]
        for row in range(len(query)):
            last = len(key) - len(query) + row + 1
            seen = slice(max(0, last - window), last)
            k, v = (each[seen].double().repeat_interleave(group, 1) for each in (key, value))
            weights = (torch.einsum("hd,khd->hk", query[row], k) * query.shape[-1] ** -0.5).softmax(
                -1
            )
            parts.append(torch.einsum("hk,khd->hd", weights, v))
    return torch.stack(parts)


@pytest.mark.parametrize("backend", [ReferenceBackend, SdpaBackend])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("window", [None, 7])
def test_heads_of_each_size_are_exact_with_a_window_and_without(
    backend: Any, dim: int, window: int | None
) -> None:
    batch = batch_of(Shape(6, 2, dim, 4), [(3, 35), (1, 17), (13, 13)], pad_tokens=1)
    if window is not None:
        batch = dataclasses.replace(batch, expected=windowed(batch, window))
    spec = dataclasses.replace(batch.shape.spec, window=window)
    assert error(run(backend(spec), batch), batch) < 2e-6


@pytest.mark.parametrize("backend", [ReferenceBackend, SdpaBackend])
@pytest.mark.parametrize("window", [1, 5, 16, 100])
@pytest.mark.parametrize("lengths", [MIXED, [(1, 40), (1, 1)], [(4, 30), (4, 4)]], ids=str)
def test_a_window_hides_what_lies_before_it(
    backend: Any, window: int, lengths: list[tuple[int, int]]
) -> None:
    batch = batch_of(Shape(page=4), lengths)
    batch = dataclasses.replace(batch, expected=windowed(batch, window))
    spec = dataclasses.replace(batch.shape.spec, window=window)
    assert error(run(backend(spec), batch), batch) < 2e-6


def test_backends_without_windows_are_refused() -> None:
    spec = dataclasses.replace(Shape().spec, window=8)
    assert choose("auto", spec).name == "reference"
    with pytest.raises(BackendUnavailableError, match="it has no sliding window, and the model"):
        choose("lazy_plan", spec)


def test_keys_and_values_are_written_to_their_slots_and_padding_nowhere() -> None:
    backend = SdpaBackend(Shape(page=4).spec)
    for padding in (0, 2):
        slots = torch.tensor([5, 11, *[PAD_SLOT_ID] * padding])
        key, value = torch.randn(2 + padding, 2, 32), torch.randn(2 + padding, 2, 32)
        cache = LayerCache(torch.zeros(3, 4, 2, 32), torch.zeros(3, 4, 2, 32))
        backend.write_kv(key, value, cache, slots)
        for new, pages in zip((key, value), cache, strict=True):
            expected = torch.zeros(12, 2, 32)
            expected[[5, 11]] = new[:2]
            assert torch.equal(pages.view(12, 2, 32), expected)


@pytest.mark.parametrize("speculative", [None, NGRAM, EAGLE], ids=["none", "ngram", "eagle"])
def test_an_engine_makes_the_same_texts_with_it(
    folder: str, speculative: dict[str, Any] | None
) -> None:
    core = make_core(folder, attention_backend="sdpa", speculative_config=speculative)
    assert core.info()["backend"] == "sdpa"
    for name, tokens in generate(core, PROMPTS, GREEDY).items():
        assert tokens == plain_tokens(folder, PROMPTS[name], COUNT), name


def test_it_is_for_cpus() -> None:
    spec = dataclasses.replace(Shape().spec, device=torch.device("cuda", 0))
    assert "it is for CPUs" in str(SdpaBackend.why_not(spec))
