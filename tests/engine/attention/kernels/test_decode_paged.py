"""Decode is exact however keys are split, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.engine.support.attention import Shape, batch_of, error
from tests.engine.support.attention_kernels import (
    SPLITS,
    TOLERANCE,
    by_paged_shape,
    run_decode,
)

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


@by_paged_shape
@pytest.mark.parametrize("splits", SPLITS)
def test_decode_is_exact_however_keys_are_split(shape: Shape, splits: str) -> None:
    batch = batch_of(shape, [(1, 40), (3, 33), (2, 2), (1, 16)], pad_reqs=1, pad_tokens=1)
    out = run_decode(batch, SPLITS[splits](batch), 3)
    assert error(out, batch) < TOLERANCE[shape.dtype]
    assert torch.equal(out[-1], torch.full_like(out[-1], 7.0))


@pytest.mark.parametrize("splits", SPLITS)
def test_decode_leaves_requests_with_more_queries_to_others(splits: str) -> None:
    batch = batch_of(Shape(), [(1, 20), (4, 30), (2, 35)])
    out = run_decode(batch, SPLITS[splits](batch), 3)
    assert torch.equal(out[1:5], torch.full_like(out[1:5], 7.0))
    out[1:5] = batch.expected[1:5].float()
    assert error(out, batch) < 1e-5
