"""Blocks of all caches become rows, and rows become blocks, bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sample_engine.kv_transfer.block_mover import BlockMover

BLOCKS = 9


def caches(device: str = "cpu", dtype: torch.dtype = torch.float32, heads: int = 2) -> list[Tensor]:
    """Keys and values of two layers, views of one tensor each, and of a draft head."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for count in (2, 2, heads):
        both = torch.randn((2, BLOCKS, 4, count, 8), generator=generator).to(device, dtype)
        found += list(both)
    return found


def check(device: str, dtype: torch.dtype, heads: int) -> None:
    """Move blocks out of some caches and into others, in another order."""
    sources, targets = caches(device, dtype, heads), caches(device, dtype, heads)
    for each in targets:
        each.zero_()
    out, into = BlockMover(sources), BlockMover(targets)
    assert out.block_bytes == sum(each[0].numel() * each.element_size() for each in sources)
    rows = out.gather([5, 2, 7])
    assert [len(row) for row in rows] == [out.block_bytes] * 3
    for row, target in zip(rows, into.rows, strict=False):
        target[:] = row
    into.scatter([1, 8, 3])
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(target[[1, 8, 3]], source[[5, 2, 7]])
        assert not target[[0, 2, 4, 5, 6, 7]].any(), "a block that nobody named was written"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_goes_out_comes_back(dtype: torch.dtype) -> None:
    check("cpu", dtype, heads=3)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [2, 3], ids=["one shape", "several shapes"])
def test_what_goes_out_of_a_gpu_comes_back(heads: int) -> None:
    check("cuda", torch.bfloat16, heads)


def test_there_are_as_many_rows_as_there_is_room_for() -> None:
    one = BlockMover(caches(), most_bytes=1)
    assert one.num_rows == len(one.rows) == 1
    assert BlockMover(caches(), most_bytes=5 * one.block_bytes + 1).num_rows == 5
    assert BlockMover(caches()).num_rows == 256


def test_a_row_is_nothing_but_its_block() -> None:
    mover = BlockMover(caches())
    (row,) = mover.gather([4])
    expected = torch.cat([each[4].flatten() for each in caches()])
    assert torch.equal(torch.frombuffer(bytearray(row), dtype=torch.float32), expected)
