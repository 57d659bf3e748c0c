"""How kernels are built and keys are split is plain arithmetic on what the host knows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sample_engine.attention.interface import CommonAttentionMetadata, LayerCache
from sample_engine.attention.kernels.splits import EvenSplits, FixedSplits, item_tensors
from tests.engine.support.attention import Shape

pytest.importorskip("triton")

LLAMA = dataclasses.replace(Shape(32, 8, 128).spec, dtype=torch.bfloat16)


@given(
    num_reqs=st.integers(1, 300),
    max_seq_len=st.integers(1, 200_000),
    num_kv_heads=st.sampled_from([1, 2, 8, 40, 300]),
)
def test_all_processors_have_work_and_a_lone_request_no_more_than_begins_at_once(
    num_reqs: int, max_seq_len: int, num_kv_heads: int
) -> None:
    from sample_engine.attention.tuning import decode_config, splits_for

    config = decode_config(LLAMA, (9, 0))
    splits = splits_for(config, num_kv_heads, num_reqs, max_seq_len, 132)
    assert isinstance(splits, EvenSplits)
    assert splits.block % config.block_n == 0
    assert num_reqs * num_kv_heads * splits.num_splits >= 132
    assert num_kv_heads * splits.num_splits <= max(2 * 132, num_kv_heads)


@pytest.mark.parametrize(
    ("num_reqs", "length", "pieces"),
    [(1, 1024, 16), (1, 8192, 32), (1, 32768, 32), (48, 256, 1), (48, 16384, 6), (64, 8192, 4)],
)
def test_lone_texts_are_cut_for_all_processors_and_short_ones_in_company_are_left_whole(
    num_reqs: int, length: int, pieces: int
) -> None:
    from sample_engine.attention.tuning import decode_config, splits_for

    splits = splits_for(decode_config(LLAMA, (9, 0)), 8, num_reqs, 100_000, 132)
    lengths = torch.full((num_reqs,), length, dtype=torch.int32)
    used = item_tensors(splits, lengths).item_req >= 0
    assert used.sum() == num_reqs * pieces


def test_a_lone_long_text_is_decoded_by_kernels_that_begin_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As its programs would else be spread unevenly; what comes of it is the same."""
    from sample_engine.attention.kernels import combine_splits, decode_paged
    from sample_engine.attention.triton_backend import TritonBackend

    shape = Shape(4, 2, 16)
    backend = TritonBackend(shape.spec)
    backend.overlap = True  # as on Hopper
    seen: list[bool] = []
    for module, name in ((decode_paged, "decode_paged"), (combine_splits, "combine_splits")):
        monkeypatch.setattr(module, name, lambda *_, overlap, **__: seen.append(overlap))
    for num_reqs, longest, expected in ((1, 8191, True), (1, 8192, False), (2, 8192, True)):
        common = common_of_lengths([longest] * num_reqs)
        metadata = backend.build(common)
        query = torch.zeros(num_reqs, 4, 16)
        cache = LayerCache(torch.zeros(1, 16, 2, 16), torch.zeros(1, 16, 2, 16))
        backend.forward(query, cache, metadata, query)
        assert seen == [expected] * 2
        seen.clear()


def common_of_lengths(lengths: list[int]) -> CommonAttentionMetadata:
    """Requests of one query each, all of whose tokens are in the null block."""
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
    lens = torch.tensor(lengths, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        seq_lens=lens,
        block_table=torch.zeros(len(lengths), max(lengths) // 16 + 1, dtype=torch.int32),
        slot_mapping=torch.full((len(lengths),), -1),
        query_start_loc_cpu=starts,
        seq_lens_cpu=lens,
        num_reqs=len(lengths),
        num_tokens=len(lengths),
        max_query_len=1,
        max_seq_len=max(lengths),
    )


@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=6),
    num_splits=st.integers(1, 70),
    block=st.sampled_from([16, 64]),
)
def test_even_splits_cover_each_request_and_are_whole_blocks_of_one_length(
    lengths: list[int], num_splits: int, block: int
) -> None:
    plan = item_tensors(EvenSplits(num_splits, block), torch.tensor(lengths, dtype=torch.int32))
    for index, length in enumerate(lengths):
        mine = plan.item_req == index
        start, stop = plan.item_start[mine].tolist(), plan.item_stop[mine].tolist()
        assert [*start, length] == [0, *stop] if length else not start
        sizes = [end - begin for begin, end in zip(start, stop, strict=True)]
        assert all(size == sizes[0] and size % block == 0 for size in sizes[:-1])
        assert len(sizes) <= num_splits
        assert max(sizes, default=0) <= -(-length // (num_splits * block)) * block


@given(num_reqs=st.integers(1, 64), max_seq_len=st.integers(1, 5000))
def test_with_float32_the_length_of_a_split_does_not_depend_on_the_batch(
    num_reqs: int, max_seq_len: int
) -> None:
    from sample_engine.attention.tuning import decode_config, splits_for

    config = decode_config(Shape().spec, (9, 0))
    splits = splits_for(config, 2, num_reqs, max_seq_len, 132)
    assert splits == FixedSplits(256, -(-max_seq_len // 256))


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
