"""The backend of our kernels is exact on any batch, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.support.attention import Shape, batch_of, error

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 40)).map(lambda at: (at[0], sum(at))),
        min_size=1,
        max_size=2,
    ),
    heads=st.sampled_from([(3, 1), (2, 2)]),
    dim=st.sampled_from([32, 40]),
    page=st.sampled_from([16, 32]),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
def test_the_backend_is_exact_on_any_batch(
    requests: list[tuple[int, int]], heads: tuple[int, int], dim: int, page: int, seed: int
) -> None:
    from sample_engine.attention.triton_backend import TritonBackend

    batch = batch_of(Shape(*heads, head_dim=dim, page=page), requests, seed=seed)
    backend = TritonBackend(batch.shape.spec)
    backend.most_queries = 3  # so that both kernels have their part
    out = torch.full_like(batch.query, float("nan"))
    backend.forward(batch.query, batch.cache, backend.build(batch.common), out)
    assert error(out, batch) < 1e-5
