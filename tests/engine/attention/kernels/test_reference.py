"""The oracles of decode make the parts that the kernels make."""

from __future__ import annotations

import pytest
import torch

from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.kernels.splits import (
    Splits,
    item_tensors,
    partials,
)
from tests.engine.support.attention import Shape, batch_of, error
from tests.engine.support.attention_kernels import (
    SPLITS,
)

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.parametrize("splits", ["splits of 16", "three equal splits", "planned"])
def test_the_oracles_of_decode_make_the_same_parts(splits: str) -> None:
    from sample_engine.attention.kernels.combine_splits import combine_splits
    from sample_engine.attention.kernels.decode_paged import DecodeConfig, decode_paged

    batch = batch_of(Shape(6, 2), [(1, 40), (3, 33), (2, 2)])
    common, cut = batch.common, SPLITS[splits](batch)
    starts, lengths, scale = common.query_start_loc, common.seq_lens, batch.shape.spec.scale
    both = [partials(cut, 3, 3, 6, 32, torch.device("cpu")) for _ in range(2)]
    outs = [torch.zeros_like(batch.query) for _ in range(2)]
    given_to_both = (*batch.cache, common.block_table, starts, lengths)
    decode_paged(
        batch.query, *given_to_both, outs[0], *both[0], scale, cut, config=DecodeConfig(16)
    )
    oracle.decode_paged(batch.query, *given_to_both, outs[1], *both[1], scale, cut)
    several = _in_requests_of_several_items(cut, lengths)
    rows = (starts[1:] - starts[:-1])[item_tensors(cut, lengths).item_req[several]]
    for item, count in zip(several.tolist(), rows.tolist(), strict=True):
        torch.testing.assert_close(both[0][0][item, :count], both[1][0][item, :count])
        torch.testing.assert_close(both[0][1][item, :count], both[1][1][item, :count])
    for out, (parts, lse) in zip(outs, both, strict=True):
        combine = combine_splits if out is outs[0] else oracle.combine_splits
        combine(parts, lse, starts, lengths, out, cut)
        assert error(out, batch) < 1e-5


def _in_requests_of_several_items(cut: Splits, lengths: torch.Tensor) -> torch.Tensor:
    owner = item_tensors(cut, lengths).item_req
    counts = torch.bincount(owner[owner >= 0], minlength=len(lengths))
    return ((owner >= 0) & (counts[owner.clamp(min=0)] > 1)).nonzero()[:, 0]
