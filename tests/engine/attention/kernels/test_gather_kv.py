"""Pages are gathered into one piece, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from sample_engine.attention.kernels import reference as oracle
from tests.engine.support.attention import Shape, batch_of

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


def test_pages_are_gathered_into_one_piece() -> None:
    from sample_engine.attention.kernels.gather_kv import gather_kv

    batch = batch_of(Shape(6, 3, 40, 16), [(1, 33), (1, 5), (1, 16)])
    out, again = (torch.full((54, 3, 40), float("nan")) for _ in range(2))
    start, table = batch.kv_start, batch.common.block_table
    gather_kv(batch.cache.value, table, start, out, max_seq_len=33)
    oracle.gather_kv(batch.cache.value, table, start, again)
    assert torch.equal(out, torch.cat(batch.values))
    assert torch.equal(out, again)
