"""How kernels are built and keys are split is plain arithmetic on what the host knows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support.attention import Shape

pytest.importorskip("triton")

LLAMA = dataclasses.replace(Shape(32, 8, 128).spec, dtype=torch.bfloat16)


@given(
    num_reqs=st.integers(1, 300),
    max_seq_len=st.integers(1, 200_000),
    num_kv_heads=st.sampled_from([1, 2, 8]),
)
def test_splits_cover_the_longest_sequence_and_none_is_very_small(
    num_reqs: int, max_seq_len: int, num_kv_heads: int
) -> None:
    from sample_engine.attention.tuning import decode_config, splits_for

    config = decode_config(LLAMA, (9, 0))
    splits = splits_for(config, num_kv_heads, num_reqs, max_seq_len, 132)
    assert splits.split_len * splits.num_splits >= max_seq_len
    assert splits.split_len * (splits.num_splits - 1) < max_seq_len
    assert splits.split_len % config.block_n == 0
    assert splits.split_len >= 64
    programs = num_reqs * num_kv_heads * splits.num_splits
    assert programs >= 132 or splits.split_len == 64


def test_one_long_sequence_keeps_all_processors_busy() -> None:
    from sample_engine.attention.tuning import decode_config, splits_for

    splits = splits_for(decode_config(LLAMA, (9, 0)), 8, 1, 8192, 132)
    assert 8 * splits.num_splits >= 132


@given(num_reqs=st.integers(1, 64), max_seq_len=st.integers(1, 5000))
def test_with_float32_the_length_of_a_split_does_not_depend_on_the_batch(
    num_reqs: int, max_seq_len: int
) -> None:
    from sample_engine.attention.tuning import decode_config, splits_for

    config = decode_config(Shape().spec, (9, 0))
    assert splits_for(config, 2, num_reqs, max_seq_len, 132).split_len == 256


@pytest.mark.parametrize("capability", [None, (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
def test_a_prefill_tile_fits_into_shared_memory(
    capability: tuple[int, int] | None, paged: bool, dtype: torch.dtype, dim: int
) -> None:
    from sample_engine.attention.tuning import prefill_config

    spec = dataclasses.replace(LLAMA, dtype=dtype, head_dim=dim)
    config = prefill_config(spec, capability, paged=paged)
    rows = config.block_m + 2 * config.block_n * (config.num_stages - 1)
    room = {(8, 0): 163, (9, 0): 227, (10, 0): 227}.get(capability or (0, 0), 99)
    width = 256 if dim == 192 else dim  # as wide as a tile is
    assert rows * width * dtype.itemsize <= room * 1024
    assert config.block_m >= spec.num_heads // spec.num_kv_heads
