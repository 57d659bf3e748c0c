"""Which graph serves a batch: the smallest that fits, and never one that was not captured."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import (
    BatchExecutionDescriptor,
    capture_descriptors,
    capture_order,
    capture_sizes,
    dispatch,
    query_len_of,
    wanted_modes,
)

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


def full(num_reqs: int, query_len: int = 1) -> BatchExecutionDescriptor:
    return BatchExecutionDescriptor(FULL, num_reqs * query_len, num_reqs, query_len)


def piecewise(num_tokens: int) -> BatchExecutionDescriptor:
    return BatchExecutionDescriptor(PIECEWISE, num_tokens)


CAPTURED = (
    *(full(size) for size in (1, 2, 4, 8)),
    *(full(size, 4) for size in (1, 2, 4)),
    *(piecewise(size) for size in (1, 2, 4, 8, 16, 32)),
)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        pytest.param((3, 3, 1), full(4), id="decodes are filled up"),
        pytest.param((8, 8, 1), full(8), id="a batch of a size is that size"),
        pytest.param((2, 8, 4), full(2, 4), id="drafts to verify"),
        pytest.param((3, 7, 4), full(4, 4), id="fewer drafts than there may be"),
        pytest.param((9, 9, 1), piecewise(16), id="more decodes than any graph holds"),
        pytest.param((2, 9, None), piecewise(16), id="prompts"),
        pytest.param((2, 6, 3), piecewise(8), id="a number of queries that was not captured"),
        pytest.param((2, 33, None), BatchExecutionDescriptor(NONE, 33, 2), id="a large batch"),
    ],
)
def test_a_batch_gets_the_smallest_graph_that_fits(
    batch: tuple[int, int, int | None], expected: BatchExecutionDescriptor
) -> None:
    assert dispatch(CAPTURED, *batch) == expected
    assert dispatch(tuple(reversed(CAPTURED)), *batch) == expected


descriptors = st.builds(full, st.integers(1, 40), st.integers(1, 6)) | st.builds(
    piecewise, st.integers(1, 300)
)


@given(
    captured=st.frozensets(descriptors, max_size=12),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=40),
)
def test_what_is_chosen_was_captured_and_holds_the_batch_and_nothing_smaller_does(
    captured: frozenset[BatchExecutionDescriptor], counts: list[int]
) -> None:
    query_len = query_len_of(counts, {d.uniform_query_len for d in captured} - {None})  # type: ignore[arg-type]
    desc = dispatch(captured, len(counts), sum(counts), query_len)

    def holds(each: BatchExecutionDescriptor) -> bool:
        if each.cg_mode is PIECEWISE:
            return each.num_tokens >= sum(counts)
        assert each.num_reqs is not None
        return each.num_reqs >= len(counts) and each.uniform_query_len == query_len

    if desc.cg_mode is NONE:
        assert desc == BatchExecutionDescriptor(NONE, sum(counts), len(counts))
        assert not any(map(holds, captured))
        return
    assert desc in captured
    assert holds(desc)
    assert desc.num_tokens >= sum(counts)
    for other in captured:
        if other.cg_mode is desc.cg_mode and holds(other):
            assert other.num_tokens >= desc.num_tokens
        if other.cg_mode is FULL and holds(other):
            assert desc.cg_mode is FULL


def test_no_query_len_serves_a_prompt_that_is_longer() -> None:
    assert query_len_of([1, 1], (1, 4)) == 1
    assert query_len_of([1, 3], (1, 4)) == 4
    assert query_len_of([1, 5], (1, 4)) is None
    assert query_len_of([1], ()) is None


@given(st.integers(1, 600))
def test_the_sizes_go_up_to_the_largest_and_leave_no_large_gap(largest: int) -> None:
    sizes = capture_sizes(largest)
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))
    assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))


def test_the_usual_sizes() -> None:
    assert capture_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert capture_sizes(5) == (1, 2, 4, 5)


def test_what_is_captured_fits_the_largest_batch() -> None:
    descs = capture_descriptors(FULL, max_num_reqs=8, max_num_tokens=20, query_lens=(1, 4))
    assert set(descs) == {*(full(n) for n in (1, 2, 4, 8)), *(full(n, 4) for n in (1, 2, 4, 5))}
    descs = capture_descriptors(PIECEWISE, max_num_reqs=8, max_num_tokens=20)
    assert [desc.num_tokens for desc in descs] == [20, 16, 8, 4, 2, 1]
    assert capture_descriptors(NONE, max_num_reqs=8, max_num_tokens=20) == ()


def test_sizes_that_are_asked_for_are_kept_to() -> None:
    descs = capture_descriptors(FULL, max_num_reqs=8, max_num_tokens=64, sizes=(2, 6, 9))
    assert descs == (full(6), full(2))


@given(st.permutations(CAPTURED))
def test_piecewise_is_captured_before_full_and_the_largest_first(
    descs: list[BatchExecutionDescriptor],
) -> None:
    order = capture_order(descs)
    assert [each.num_tokens for each in order] == [32, 16, 8, 4, 2, 1, 16, 8, 8, 4, 4, 2, 1]
    assert [each.cg_mode for each in order] == [PIECEWISE] * 6 + [FULL] * 7
    assert order == capture_order(CAPTURED)


def test_a_mode_says_which_graphs_are_wanted() -> None:
    assert wanted_modes(NONE) == ()
    assert wanted_modes(FULL) == (FULL,)
    assert wanted_modes(PIECEWISE) == (PIECEWISE,)


def test_a_descriptor_reads_as_words() -> None:
    assert str(full(4, 2)) == "FULL, 4 requests, 8 tokens"
    assert str(piecewise(1)) == "PIECEWISE, 1 token"
