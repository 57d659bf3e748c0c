"""A plan covers each key once, and is that of the oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.attention.kernels import reference as oracle

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 300)).map(lambda at: (at[0], sum(at))),
        min_size=1,
        max_size=6,
    ),
    num_parts=st.integers(1, 9),
    block_n=st.sampled_from([16, 32]),
)
@settings(max_examples=25, deadline=None)
def test_a_plan_covers_each_key_once_and_is_that_of_the_oracle(
    lengths: list[tuple[int, int]], num_parts: int, block_n: int
) -> None:
    from sample_engine.attention.kernels.plan_decode import plan_decode

    starts = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int()
    seq_lens = torch.tensor([keys for _, keys in lengths], dtype=torch.int32)
    plan = plan_decode(seq_lens, starts, 4, block_n, num_parts)
    expected = oracle.plan_decode(seq_lens, starts, 4, block_n, num_parts)
    for got, wanted in zip(plan.tensors, expected.tensors, strict=True):
        assert torch.equal(got, wanted)
    blocks = sum(-(-keys // block_n) for queries, keys in lengths if 1 <= queries <= 4)
    for req, (queries, keys) in enumerate(lengths):
        first, last = plan.first_item[req : req + 2].tolist()
        assert (plan.item_req[first:last] == req).all()
        covered = [
            at
            for item in range(first, last)
            for at in range(int(plan.item_start[item]), int(plan.item_stop[item]))
        ]
        assert covered == (list(range(keys)) if 1 <= queries <= 4 else [])
    longest = (plan.item_stop - plan.item_start).max()
    assert longest <= -(-blocks // num_parts) * block_n
