"""A block is found by its text from the very beginning, by nothing less and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.batch.request import Request
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.kv_cache.manager import KVCacheManager
from sample_engine.kv_cache.prefix_cache import ROOT_HASH, PrefixCache, block_hash

PARAMS = SamplingParams()


def request(tokens: list[int], arrival: int) -> Request:
    return Request(f"r{arrival}", tokens, PARAMS, 0, arrival)


def computed(manager: KVCacheManager, each: Request) -> Request:
    """Run a request's prompt: it gets its blocks, and they can be found."""
    manager.admit(each, manager.find_prefix(each))
    assert manager.grow(each, each.num_tokens)
    each.num_computed_tokens = each.num_tokens
    manager.publish(each, each.num_tokens)
    return each


def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        "from sample_engine.kv_cache.prefix_cache import *; "
        "print(block_hash(block_hash(ROOT_HASH, [1, 2]), [3, 4]).hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {block_hash(block_hash(ROOT_HASH, [1, 2]), [3, 4]).hex() + "\n"}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=40))
def test_different_texts_have_different_hashes(texts: list[list[int]]) -> None:
    hashes: dict[bytes, list[int]] = {}
    for text in texts:
        chained = block_hash(block_hash(ROOT_HASH, text[:2]), text[2:])
        assert hashes.setdefault(chained, text) == text


def test_the_same_tokens_after_another_text_have_another_hash() -> None:
    parents = [ROOT_HASH, block_hash(ROOT_HASH, [1]), block_hash(ROOT_HASH, [2])]
    assert len({block_hash(parent, [7, 7]) for parent in parents}) == 3


def test_a_chain_is_found_up_to_the_first_block_that_is_missing() -> None:
    cache = PrefixCache()
    for name, block in ((b"a", 5), (b"b", 3), (b"d", 9)):
        cache.put(name, block)
    assert cache.find([b"a", b"b", b"c", b"d"]) == [5, 3]


def test_the_first_block_of_a_hash_stays_and_a_forgotten_one_is_gone() -> None:
    cache = PrefixCache()
    cache.put(b"a", 1)
    cache.put(b"a", 2)
    assert cache.find([b"a"]) == [1]
    assert 2 not in cache
    cache.forget(2)
    assert cache.find([b"a"]) == [1]
    cache.forget(1)
    assert cache.find([b"a"]) == []
    assert len(cache) == 0


def test_a_block_cannot_be_found_under_two_hashes() -> None:
    cache = PrefixCache()
    cache.put(b"a", 1)
    with pytest.raises(AssertionError, match="block 1 has other contents"):
        cache.put(b"b", 1)


def test_requests_with_a_common_beginning_share_its_full_blocks_alone() -> None:
    manager = KVCacheManager(20, 4, enable_prefix_caching=True)
    first = computed(manager, request([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0))
    second = computed(manager, request([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 1))
    third = computed(manager, request([1, 2, 3, 4, 5, 6, 7, 99, 9, 10], 2))
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]
    assert third.block_ids[0] == first.block_ids[0]
    assert not set(third.block_ids[1:]) & set(first.block_ids + second.block_ids)


def test_one_token_is_always_left_to_compute() -> None:
    manager = KVCacheManager(20, 4, enable_prefix_caching=True)
    computed(manager, request(list(range(8)), 0))
    assert len(manager.find_prefix(request(list(range(8)), 1))) == 1
    assert len(manager.find_prefix(request(list(range(9)), 2))) == 2


def test_blocks_of_ended_requests_are_found_until_they_are_overwritten() -> None:
    manager = KVCacheManager(4, 2, enable_prefix_caching=True)
    text = [1, 2, 3, 4, 5, 6]
    manager.release(computed(manager, request(text, 0)), forget=True)
    assert len(manager.find_prefix(request([*text, 7], 1))) == 3
    other = computed(manager, request([9, 9], 2))
    # The end of the text went first: its beginning is of use to more requests.
    assert len(manager.find_prefix(request([*text, 7], 3))) == 2
    manager.release(other, forget=True)


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = KVCacheManager(20, 4, enable_prefix_caching=False)
    computed(manager, request(list(range(8)), 0))
    assert manager.find_prefix(request(list(range(9)), 1)) == []
    assert len(manager.prefix_cache) == 0


def test_a_request_that_cannot_grow_gets_no_block_at_all() -> None:
    manager = KVCacheManager(4, 2, enable_prefix_caching=True)
    each = request(list(range(10)), 0)
    manager.admit(each, [])
    assert not manager.grow(each, 10)
    assert each.block_ids == []
    assert manager.pool.num_free == 3
