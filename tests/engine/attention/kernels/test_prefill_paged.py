"""Prefill over pages is exact, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.engine.support.attention import Shape, batch_of, error
from tests.engine.support.attention_kernels import (
    PROMPTS,
    TOLERANCE,
    VARIANTS,
    by_paged_shape,
    skip_if_unfit,
)

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


@by_paged_shape
@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_over_pages_is_exact(shape: Shape, variant: str) -> None:
    from sample_engine.attention.kernels.prefill import PrefillConfig
    from sample_engine.attention.kernels.prefill_paged import prefill_paged

    skip_if_unfit(shape, variant)
    config = PrefillConfig(**VARIANTS[variant], page_ahead=variant != "pointer")
    batch = batch_of(shape, PROMPTS, pad_reqs=1, pad_tokens=2)
    common, out = batch.common, torch.full_like(batch.query, 7.0)
    prefill_paged(
        batch.query,
        batch.cache.key,
        batch.cache.value,
        common.block_table,
        common.query_start_loc,
        common.seq_lens,
        out,
        shape.spec.scale,
        max_query_len=common.max_query_len,
        config=config,
    )
    assert error(out, batch) < TOLERANCE[shape.dtype]
    assert torch.equal(out[-2:], torch.full_like(out[-2:], 7.0))


def test_prefill_leaves_requests_with_fewer_queries_to_others() -> None:
    from sample_engine.attention.kernels.prefill import PrefillConfig
    from sample_engine.attention.kernels.prefill_paged import prefill_paged

    batch = batch_of(Shape(), [(1, 20), (4, 30), (2, 35)])
    common, out = batch.common, torch.full_like(batch.query, 7.0)
    prefill_paged(
        batch.query, batch.cache.key, batch.cache.value, common.block_table,
        common.query_start_loc, common.seq_lens, out, batch.shape.spec.scale, 3,
        max_query_len=4, config=PrefillConfig(16, 16),
    )  # fmt: skip
    assert torch.equal(out[[0, 5, 6]], torch.full_like(out[[0, 5, 6]], 7.0))
    assert (out[1:5].double() - batch.expected[1:5]).abs().max() < 1e-5
