"""The size of a block, and how many blocks there is room for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sample_engine.attention.interface import AttentionSpec
from sample_engine.errors import ConfigError
from sample_engine.kv_cache.memory import (
    allocate_caches,
    bytes_per_block,
    num_blocks_on_cpu,
    num_blocks_on_gpu,
)

SPEC = AttentionSpec(4, 2, 8, 16, torch.float32, torch.device("cpu"))


def test_a_block_takes_keys_and_values_of_all_layers() -> None:
    caches = allocate_caches(SPEC, num_layers=3, num_blocks=5)
    taken = sum(each.numel() * each.element_size() for cache in caches for each in cache)
    assert taken == 5 * bytes_per_block(SPEC, num_layers=3)
    assert caches[0].key.shape == caches[2].value.shape == (5, 16, 2, 8)
    assert all(each.is_contiguous() for cache in caches for each in cache)


def test_on_a_cpu_all_requests_have_room_for_their_full_length_up_to_a_gibibyte() -> None:
    assert num_blocks_on_cpu(SPEC, 2, max_model_len=100, max_num_seqs=4) == 1 + 4 * 7
    most = num_blocks_on_cpu(SPEC, 2, max_model_len=1_000_000, max_num_seqs=64)
    assert 0.99 * 2**30 < (most - 1) * bytes_per_block(SPEC, 2) <= 2**30


def test_a_block_of_fp8_takes_a_byte_a_number_and_one_a_row() -> None:
    spec = dataclasses.replace(SPEC, fp8_cache=True)
    assert bytes_per_block(spec, num_layers=3) == 2 * 3 * 16 * 2 * (8 + 1)
    caches = allocate_caches(spec, num_layers=3, num_blocks=5)
    taken = sum(each.untyped_storage().nbytes() for cache in caches for each in cache)
    assert taken == 5 * bytes_per_block(spec, num_layers=3)
    half, many = dataclasses.replace(SPEC, dtype=torch.float16), {"max_num_seqs": 64}
    plain = num_blocks_on_cpu(half, 2, max_model_len=10_000_000, **many)
    assert num_blocks_on_cpu(spec, 2, max_model_len=10_000_000, **many) > 1.7 * plain


@pytest.mark.gpu
def test_a_gpu_has_room_for_as_many_more_blocks_of_fp8_as_they_are_smaller() -> None:
    spec = AttentionSpec(32, 8, 128, 16, torch.bfloat16, torch.device("cuda", 0))
    smaller = dataclasses.replace(spec, fp8_cache=True)
    counts = [num_blocks_on_gpu(each, 32, 0, utilization=0.5) for each in (spec, smaller)]
    assert counts[1] / counts[0] == pytest.approx(256 / 129, rel=0.01)


@pytest.mark.gpu
def test_gpu_memory_that_does_not_suffice_is_said_with_words() -> None:
    spec = AttentionSpec(4, 2, 8, 16, torch.float16, torch.device("cuda", 0))
    with pytest.raises(ConfigError, match=r"No memory is left for the KV cache: of .* GiB on cuda"):
        num_blocks_on_gpu(spec, 2, peak_bytes=1 << 50, utilization=0.5)
