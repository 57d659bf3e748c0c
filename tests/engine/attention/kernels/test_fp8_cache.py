"""What FP8 makes of rows is within the bounds of its format, and lies where a block says."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sample_engine.attention.kernels.fp8_cache import (
    allocate,
    blocks_of,
    bytes_of_block,
    dequantize,
    exponents_of,
    is_fp8,
    quantize,
    stored_as,
    take_blocks,
)
from tests.engine.support.fp8 import most_lost, scales


def _rows(seed: int, size: float, spread: float) -> torch.Tensor:
    """Rows of numbers whose magnitudes differ by so many powers of two."""
    rng = torch.Generator().manual_seed(seed)
    powers = torch.rand(64, 48, generator=rng) * spread - spread / 2
    return torch.randn(64, 48, generator=rng) * torch.exp2(powers) * 2.0**size


@given(
    seed=st.integers(0, 9999),
    size=st.floats(-100, 100),
    spread=st.sampled_from([0.0, 4.0, 20.0, 40.0]),
)
def test_no_number_loses_more_than_the_format_says(seed: int, size: float, spread: float) -> None:
    rows = _rows(seed, size, spread)
    codes, exponents = quantize(rows)
    scale = scales(exponents)
    assert bool((scale[:, 0] < rows.double().abs().amax(-1) / 223).all())
    lost = (dequantize(codes, exponents).double() - rows.double()).abs()
    assert bool((lost <= torch.maximum(rows.double().abs() * 2**-4, scale * 2**-10)).all())
    assert bool((codes & 0x7F < 0x7F).all()), "the code of NaN"


def test_the_bound_is_no_larger_than_it_has_to_be() -> None:
    rows = torch.tensor([[1.0625, 1.0, 2**-20 * 1.5]])  # halfway to the next; then far below
    lost = (dequantize(*quantize(rows)) - rows).abs()[0]
    assert lost.tolist() == [0.0625, 0.0, 2**-20 * 1.5]
    assert lost[0] / 1.0625 > 2**-4 * 0.94


@given(seed=st.integers(0, 9999), size=st.floats(-60, 60))
def test_what_was_read_is_written_back_without_a_loss(seed: int, size: float) -> None:
    once = dequantize(*quantize(_rows(seed, size, 8.0)))
    assert torch.equal(dequantize(*quantize(once)), once)


def test_sixteen_bits_hold_what_is_read_exactly() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        rows = dequantize(*quantize(_rows(1, 0.0, 4.0).to(dtype)))
        assert torch.equal(rows.to(dtype).float(), rows)


def test_a_row_does_not_depend_on_others_and_each_head_has_its_own_scale() -> None:
    rows = torch.stack([_rows(1, 0.0, 2.0), _rows(1, 0.0, 2.0) * 2**9], dim=1)  # [T, 2 heads, D]
    codes, exponents = quantize(rows)
    assert torch.equal(codes[:, 0], codes[:, 1])
    assert torch.equal(exponents[:, 0] + 9, exponents[:, 1])
    assert torch.equal(codes[3:4], quantize(rows[3:4])[0])


def test_a_row_that_is_not_finite_is_read_as_nan_and_no_other_is() -> None:
    rows = torch.ones(5, 8)
    rows[1, 3], rows[2, 0], rows[3, 7] = torch.nan, torch.inf, -torch.inf
    read = dequantize(*quantize(rows))
    assert read[1:4].isnan().all()
    assert torch.equal(read[[0, 4]], rows[[0, 4]])


def test_zeros_stay_zeros() -> None:
    rows = torch.tensor([[0.0, -0.0, 0.0]])
    read = dequantize(*quantize(rows))
    assert torch.equal(read, rows)
    assert torch.equal(read.signbit(), rows.signbit())


def test_a_block_is_bytes_that_hold_codes_and_scales() -> None:
    cache = allocate(5, 4, 2, 24, torch.device("cpu"))
    assert is_fp8(cache)
    assert cache.shape == (5, 4, 2, 24)
    assert blocks_of(cache).shape == (5, bytes_of_block(4, 2, 24)) == (5, 4 * 2 * 25)
    rows = torch.randn(4, 2, 24)
    for new, place in stored_as(rows, cache):
        place[3] = new
    other = allocate(5, 4, 2, 24, torch.device("cpu"))
    blocks_of(other)[1] = blocks_of(cache)[3]
    assert torch.equal(take_blocks(other, torch.tensor([1]))[0], dequantize(*quantize(rows)))
    assert torch.equal(
        take_blocks(other, torch.tensor([1]), 1)[0], dequantize(*quantize(rows))[:, 1]
    )
    assert not blocks_of(other)[[0, 2, 3, 4]].any()
    assert exponents_of(other)[1].all()


def test_a_cache_of_another_type_is_taken_as_it_is() -> None:
    cache = torch.randn(3, 4, 2, 8, dtype=torch.float16)
    assert not is_fp8(cache)
    assert torch.equal(blocks_of(cache), cache.flatten(1))
    assert torch.equal(take_blocks(cache, torch.tensor([2, 0]), 1), cache[[2, 0], :, 1])
    assert most_lost(cache).shape == cache.shape
