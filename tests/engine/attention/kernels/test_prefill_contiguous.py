"""Prefill without pages is exact, in Triton's interpreter."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.engine.support.attention import Shape, batch_of, error
from tests.engine.support.attention_kernels import (
    PROMPTS,
    TOLERANCE,
    VARIANTS,
    by_shape,
    run_prefill_contiguous,
    skip_if_unfit,
)

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


@by_shape
@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_without_pages_is_exact(shape: Shape, variant: str) -> None:
    skip_if_unfit(shape, variant)
    batch = batch_of(shape, PROMPTS)
    out = run_prefill_contiguous(batch, **VARIANTS[variant])
    assert error(out, batch) < TOLERANCE[shape.dtype]


def test_chunks_of_a_prompt_get_the_same_bits_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # On some CPUs a row of numpy's product depends on where in the tile it stands.
    monkeypatch.setattr(np, "matmul", partial(np.einsum, "ij,jk->ik"))
    shape = Shape(2, 1, 32)
    whole = batch_of(shape, [(40, 40)], seed=1)
    out = run_prefill_contiguous(whole, block_m=16, block_n=16)
    for first in (3, 16, 25):
        chunk = batch_of(shape, [(40 - first, 40)])
        chunk.query.copy_(whole.query[first:])
        chunk.keys[0], chunk.values[0] = whole.keys[0], whole.values[0]
        assert torch.equal(run_prefill_contiguous(chunk, block_m=16, block_n=16), out[first:])
