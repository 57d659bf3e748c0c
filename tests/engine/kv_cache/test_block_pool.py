"""The pool gives each block to one holder at a time, and the one that is wanted least first."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.batch.request import NULL_BLOCK
from sample_engine.kv_cache.block_pool import BlockPool

NOTHING: frozenset[int] = frozenset()


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(5)
    given_out = pool.allocate(4)
    assert sorted(given_out) == [1, 2, 3, 4]
    assert NULL_BLOCK not in given_out
    assert pool.capacity == 4
    assert pool.num_free == 0


def test_more_than_is_free_is_an_error_and_gives_nothing() -> None:
    pool = BlockPool(3)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.free([block], NOTHING)
    assert pool.ref_count(block) == 1
    assert pool.num_free == 1
    pool.free([block], NOTHING)
    assert pool.ref_count(block) == 0
    assert pool.num_free == 2


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.free(blocks, NOTHING)
    with pytest.raises(AssertionError, match="block 1 is freed, but nobody holds it"):
        pool.free(blocks, NOTHING)


def test_freeing_or_sharing_the_null_block_is_an_error() -> None:
    pool = BlockPool(3)
    with pytest.raises(AssertionError, match="null block"):
        pool.free([NULL_BLOCK], NOTHING)
    with pytest.raises(AssertionError, match="null block"):
        pool.share([NULL_BLOCK])


def test_a_block_without_contents_cannot_be_shared_once_it_is_free() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.free(blocks, NOTHING)
    with pytest.raises(KeyError):
        pool.share(blocks)


def test_of_blocks_with_contents_the_one_let_go_first_is_reused_first() -> None:
    pool = BlockPool(5)
    a, b, c, d = pool.allocate(4)
    pool.free([c, a, d, b], {a, b, c, d})
    assert pool.allocate(4) == [c, a, d, b]


def test_a_block_that_was_used_again_counts_as_let_go_later() -> None:
    pool = BlockPool(4)
    a, b, c = pool.allocate(3)
    contents = {a, b, c}
    pool.free([a, b, c], contents)
    pool.share([a])
    pool.free([a], contents)
    assert pool.allocate(3) == [b, c, a]


def test_blocks_without_contents_are_reused_before_those_with() -> None:
    pool = BlockPool(4)
    a, b, c = pool.allocate(3)
    pool.free([a, b, c], {a, c})
    assert pool.allocate(3) == [b, a, c]


def test_a_pool_of_many_millions_of_blocks_takes_no_memory_until_they_are_used() -> None:
    tracemalloc.start()
    pool = BlockPool(100_000_000)
    pool.allocate(10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.num_free == 99_999_989
    assert peak < 100_000


@settings(deadline=None)
@given(st.data(), st.integers(2, 12))
def test_reference_counts_and_the_number_of_free_blocks_agree_with_a_plain_count(
    data: st.DataObject, num_blocks: int
) -> None:
    pool = BlockPool(num_blocks)
    holders: list[int] = []  # a block once for each holder
    contents: set[int] = set()
    for _ in range(data.draw(st.integers(0, 40))):
        free = num_blocks - 1 - len(set(holders))
        assert pool.num_free == free
        action = data.draw(st.sampled_from(["allocate", "share", "free"]))
        if action == "allocate":
            new = pool.allocate(data.draw(st.integers(0, free)))
            assert not set(new) & set(holders)
            assert NULL_BLOCK not in new
            contents -= set(new)
            holders += new
        elif action == "share":
            known = sorted(contents | set(holders))
            if known:
                block = data.draw(st.sampled_from(known))
                pool.share([block])
                holders.append(block)
        elif holders:
            block = data.draw(st.sampled_from(sorted(holders)))
            if data.draw(st.booleans()):
                contents.add(block)
            pool.free([block], contents)
            holders.remove(block)
        for block in range(1, num_blocks):
            assert pool.ref_count(block) == holders.count(block)
