"""The kernel moves the blocks that it is told to, and no others; Triton's interpreter runs it."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.parametrize("size", [24, 5000], ids=["part of a piece", "two pieces"])
def test_it_gathers_and_scatters(size: int) -> None:
    from sample_engine.kv_transfer.kernels.move_blocks import move_blocks

    caches = [torch.randn(6, size) for _ in range(3)]
    before = [each.clone() for each in caches]
    ids, rows = torch.tensor([4, 1]), torch.full((2, 3 * size), -1.0)
    starts = torch.tensor([each.data_ptr() for each in caches])
    move_blocks(starts, ids, rows, to_rows=True)
    assert torch.equal(rows, torch.cat([each[ids] for each in caches], dim=1))
    move_blocks(starts, torch.tensor([0, 5]), rows, to_rows=False)
    for each, old in zip(caches, before, strict=True):
        assert torch.equal(each[[0, 5]], old[[4, 1]])
        assert torch.equal(each[1:5], old[1:5])
