"""The attention backends on a GPU: compiled kernels, bfloat16, large shapes, CUDA graphs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sample_engine.attention.capability import capability_of
from sample_engine.attention.interface import (
    PAD_SLOT_ID,
    AttentionBackend,
    CommonAttentionMetadata,
)
from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.kernels.fp8_cache import blocks_of
from sample_engine.attention.registry import backend_class
from tests.engine.support.attention import Batch, Shape, batch_of, empty_cache, error, run

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LLAMA = Shape(32, 8, 128, 16, torch.bfloat16, "cuda")
TINY = Shape(6, 2, 32, 16, torch.bfloat16, "cuda")
WIDE = Shape(16, 4, 256, 16, torch.bfloat16, "cuda")
IN_FP8 = dataclasses.replace(LLAMA, fp8_cache=True)
MIXED = [(700, 700), (1, 3000), (6, 515), (129, 1000), (1, 1), (1, 64), (300, 301)]
DECODE = [(1, 4097), (1, 64), (1, 1), (1, 1000), (1, 8191)]


def _backend(name: str, shape: Shape) -> AttentionBackend:
    kind = backend_class(name)
    reason = kind.why_not(shape.spec)
    if reason is not None:
        pytest.skip(reason)
    return kind(shape.spec)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ["reference", "triton", "lazy_plan"])
@pytest.mark.parametrize("lengths", [MIXED, DECODE], ids=["mixed", "decode"])
def test_a_backend_is_exact(name: str, lengths: list[tuple[int, int]], dtype: torch.dtype) -> None:
    for shape in (LLAMA, TINY, WIDE, IN_FP8):
        shape = dataclasses.replace(shape, dtype=dtype)
        batch = batch_of(shape, lengths, pad_reqs=2, pad_tokens=3)
        out = run(_backend(name, shape), batch, fill=7.0)
        assert error(out, batch) < TOLERANCE[dtype]
        assert torch.equal(out[-3:], torch.full_like(out[-3:], 7.0))


@pytest.mark.parametrize("name", ["triton", "lazy_plan"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(4, 4, 64, 32, torch.bfloat16, "cuda"),
        Shape(16, 2, 80, 64, torch.bfloat16, "cuda"),
        Shape(6, 3, 96, 128, torch.float16, "cuda"),
        Shape(9, 3, 48, 16, torch.float16, "cuda"),
        Shape(2, 1, 128, 128, torch.float32, "cuda"),
        Shape(5, 1, 160, 32, torch.float16, "cuda"),
        Shape(12, 3, 192, 128, torch.bfloat16, "cuda"),
        Shape(8, 8, 256, 8, torch.float32, "cuda"),
        Shape(4, 4, 64, 32, torch.bfloat16, "cuda", fp8_cache=True),
        Shape(6, 3, 96, 128, torch.float16, "cuda", fp8_cache=True),
        Shape(12, 3, 256, 16, torch.bfloat16, "cuda", fp8_cache=True),
        Shape(5, 1, 40, 8, torch.float32, "cuda", fp8_cache=True),
    ],
    ids=lambda shape: (
        f"{shape.num_heads}-{shape.num_kv_heads}-{shape.head_dim}-{shape.page}"
        f"{'-fp8' if shape.fp8_cache else ''}"
    ),
)
def test_odd_shapes_are_exact(name: str, shape: Shape) -> None:
    batch = batch_of(shape, [(77, 200), (1, 333), (5, 5), (16, 1029), (1, 2)])
    out = run(_backend(name, shape), batch)
    assert error(out, batch) < TOLERANCE[shape.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dim", [64, 80, 256])
def test_an_fp8_cache_gets_the_bytes_that_the_oracle_writes(dim: int, dtype: torch.dtype) -> None:
    shape = Shape(6, 3, dim, 16, dtype, "cuda", fp8_cache=True)
    rng = torch.Generator("cuda").manual_seed(0)
    size = (200, 3, dim)
    powers = torch.randint(-14, 6, size, generator=rng, device="cuda")
    key, value = (torch.randn(size, generator=rng, device="cuda") * 2.0**powers for _ in range(2))
    key[0], key[1, 0, 0], value[2, 1, 3], value[3, 2, -1] = 0.0, torch.nan, torch.inf, -torch.inf
    key, value = key.to(dtype), value.to(dtype)
    slots = 16 + torch.randperm(480, generator=rng, device="cuda")[: len(key)]
    slots[7] = PAD_SLOT_ID
    mine, expected = (empty_cache(shape, 31) for _ in range(2))
    _backend("triton", shape).write_kv(key, value, mine, slots)
    oracle.write_kv(key, value, *expected, slots)
    for one, other in zip(mine, expected, strict=True):
        assert torch.equal(blocks_of(one), blocks_of(other))


@pytest.mark.parametrize("lengths", [MIXED, DECODE], ids=["mixed", "decode"])
def test_the_flash_library_that_is_installed_is_exact(lengths: list[tuple[int, int]]) -> None:
    backend = _backend("flash", LLAMA)
    batch = batch_of(LLAMA, lengths, unwritten=0.0)
    assert error(run(backend, batch), batch) < TOLERANCE[torch.bfloat16]
    assert backend.description.startswith("flash (")


def _config(**changes: Any) -> Any:
    from sample_engine.attention.kernels.prefill import PrefillConfig

    config = PrefillConfig(**changes)
    if config.variant == "hopper":
        triton = pytest.importorskip("triton")
        if capability_of(torch.device("cuda", 0)) != (9, 0):
            pytest.skip("the kernel in Gluon is for Hopper")
        if not triton.__version__.startswith("3.6."):
            pytest.skip(f"the kernel in Gluon is for Triton 3.6, this is {triton.__version__}")
    return config


VARIANTS: dict[str, dict[str, Any]] = {
    "pointer": {},
    "pointer, pages ahead": {"page_ahead": True},
    "pointer, heads packed": {"pack_heads": True},
    "pointer, heaviest first": {"tile_major": True},
    "descriptor": {"variant": "descriptor", "num_stages": 3},
    "hopper": {"variant": "hopper", "block_n": 128, "num_warps": 4, "num_stages": 2},
    "hopper, small tiles": {"variant": "hopper", "block_n": 64, "num_warps": 4, "num_stages": 4},
}
OF_WIDE_HEADS: dict[str, dict[str, Any]] = {
    "pointer": {"block_n": 32},
    "pointer, pages ahead": {"block_n": 32, "page_ahead": True},
    "pointer, heads packed": {"block_n": 32, "pack_heads": True},
    "pointer, heaviest first": {"block_n": 32, "tile_major": True},
    "descriptor": {"block_n": 32, "variant": "descriptor"},
    "hopper": {"variant": "hopper", "block_n": 64, "num_warps": 4, "num_stages": 2},
    "hopper, small tiles": {"variant": "hopper", "block_n": 32, "num_warps": 4, "num_stages": 3},
}
PROMPTS = [(700, 700), (129, 1000), (300, 301), (1, 77), (64, 64), (1000, 2500)]


def _variant(name: str, dim: int) -> Any:
    return _config(**(VARIANTS if dim <= 128 else OF_WIDE_HEADS)[name])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("page", [16, 128])
def test_each_variant_of_paged_prefill_is_exact(page: int, dim: int, variant: str) -> None:
    from sample_engine.attention.kernels.prefill_paged import prefill_paged

    config = _variant(variant, dim)
    if config.variant == "descriptor" and page % config.block_n:
        pytest.skip("a TMA tile has to lie in one page")
    batch = batch_of(Shape(8, 2, dim, page, torch.bfloat16, "cuda"), PROMPTS, pad_reqs=1)
    common, out = batch.common, torch.full_like(batch.query, float("nan"))
    prefill_paged(
        batch.query, *batch.cache, common.block_table, common.query_start_loc, common.seq_lens,
        out, batch.shape.spec.scale, max_query_len=common.max_query_len, config=config,
    )  # fmt: skip
    assert error(out, batch) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_each_variant_of_prefill_without_pages_is_exact(dim: int, variant: str) -> None:
    from sample_engine.attention.kernels.prefill_contiguous import prefill_contiguous

    config = _variant(variant, dim)
    batch = batch_of(Shape(8, 2, dim, 16, torch.bfloat16, "cuda"), PROMPTS)
    out = torch.full_like(batch.query, float("nan"))
    prefill_contiguous(
        batch.query, torch.cat(batch.keys), torch.cat(batch.values),
        batch.common.query_start_loc, batch.kv_start, out, batch.shape.spec.scale,
        max_query_len=batch.common.max_query_len, config=config,
    )  # fmt: skip
    assert error(out, batch) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_many_more_tiles_than_processors_are_all_computed_and_alike_each_time(dim: int) -> None:
    from sample_engine.attention.kernels.prefill_paged import prefill_paged

    config = _variant("hopper", dim)
    few = [(3, 400), (1, 1)]  # left to the decode kernel
    lengths = [*PROMPTS, *few, *PROMPTS[::-1], *few, (1500, 1500), (129, 129)]
    batch = batch_of(Shape(16, 4, dim, 16, torch.bfloat16, "cuda"), lengths, pad_reqs=3)
    common = batch.common
    runs = []
    for _ in range(3):
        out = torch.full_like(batch.query, 7.0)
        prefill_paged(
            batch.query, *batch.cache, common.block_table, common.query_start_loc, common.seq_lens,
            out, batch.shape.spec.scale, 3, max_query_len=common.max_query_len, config=config,
        )  # fmt: skip
        runs.append(out)
    skipped = torch.cat([torch.full((n,), n <= 3) for n, _ in lengths]).to(out.device)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert (out[skipped] == 7.0).all()
    wrong = (out.double() - batch.expected.to(out.device))[~skipped].abs().max()
    assert wrong < TOLERANCE[torch.bfloat16]


def test_with_float32_a_request_gets_the_same_bits_alone_and_in_company() -> None:
    shape = dataclasses.replace(TINY, dtype=torch.float32)
    backend = _backend("triton", shape)
    lengths = [(1, 900), (1, 70), (1, 2000)]
    batch = batch_of(shape, lengths)
    together = run(backend, batch)
    for index, (queries, keys) in enumerate(lengths):
        common = batch.common
        rows = slice(index, index + 1)
        alone = CommonAttentionMetadata(
            query_start_loc=common.query_start_loc[:2],
            seq_lens=common.seq_lens[rows],
            block_table=common.block_table[rows],
            slot_mapping=common.slot_mapping[rows],
            query_start_loc_cpu=common.query_start_loc_cpu[:2],
            seq_lens_cpu=common.seq_lens_cpu[rows],
            num_reqs=1,
            num_tokens=queries,
            max_query_len=queries,
            max_seq_len=keys,
        )
        one = dataclasses.replace(batch, query=batch.query[rows], common=alone)
        assert torch.equal(run(backend, one), together[rows])


def _shorten(batch: Batch, shorter: Batch) -> None:
    """Put another, shorter batch where a graph looks for its inputs."""
    common, other = batch.common, shorter.common
    common.seq_lens.copy_(other.seq_lens)
    common.query_start_loc.copy_(other.query_start_loc)
    common.block_table.zero_()
    common.block_table[:, : other.block_table.shape[1]] = other.block_table
    batch.query.copy_(shorter.query)
    for part, new in zip(batch.cache, shorter.cache, strict=True):
        blocks_of(part)[: new.shape[0]] = blocks_of(new)


@pytest.mark.parametrize("fp8_cache", [False, True])
@pytest.mark.parametrize("name", ["reference", "triton", "lazy_plan"])
def test_a_captured_decode_serves_shorter_batches(name: str, fp8_cache: bool) -> None:
    shape = dataclasses.replace(TINY, fp8_cache=fp8_cache)
    backend = _backend(name, shape)
    batch = batch_of(shape, [(1, 2000), (1, 1500), (1, 900)])
    out = torch.full_like(batch.query, float("nan"))
    run(backend, batch)  # compiles
    torch.cuda.synchronize()
    metadata = backend.build(batch.common)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.forward(batch.query, batch.cache, metadata, out)
    for lengths in ([(1, 1999), (1, 3), (1, 777)], [(1, 16), (1, 17), (1, 1)]):
        shorter = batch_of(shape, lengths, seed=1)
        _shorten(batch, shorter)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert error(out, shorter) < TOLERANCE[torch.bfloat16]


def test_a_graph_captured_with_metadata_that_was_planned_before_misses_the_plan() -> None:
    backend = _backend("lazy_plan", TINY)
    batch = batch_of(TINY, [(1, 2000), (1, 1500)])
    lengths = batch.common.seq_lens.clone()
    out = torch.full_like(batch.query, float("nan"))
    results = {}
    for case in ("planned before", "planned in the graph"):
        metadata = backend.build(batch.common)
        batch.common.seq_lens.fill_(5)
        if case == "planned before":
            backend.forward(batch.query, batch.cache, metadata, out)  # the warm-up plans
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            backend.forward(batch.query, batch.cache, metadata, out)
        batch.common.seq_lens.copy_(lengths)
        graph.replay()
        torch.cuda.synchronize()
        results[case] = error(out, batch)
    assert results["planned in the graph"] < TOLERANCE[torch.bfloat16]
    assert not results["planned before"] < TOLERANCE[torch.bfloat16]
