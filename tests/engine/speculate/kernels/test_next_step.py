"""The interpreted kernel writes the next step as its oracle does.

That the oracle writes what the CPU would is tried in test_steps_written_on_device.py.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.batch.draft_tensors import NextStep
from sample_engine.speculate.kernels import reference as oracle

PAGE, LONGEST, UNWRITTEN = 4, 30, 1_000_000


def fields(num_reqs: int, width: int, most_tokens: int, rng: torch.Generator) -> NextStep:
    """Memory with the numbers of another step in it."""
    num_tokens = min(num_reqs * (width + 1), most_tokens)

    def full(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.full(size, UNWRITTEN, dtype=dtype)

    query_start_loc = full(num_reqs + 1, dtype=torch.int32)
    query_start_loc[0] = 0
    table = torch.randint(1, 50, (num_reqs, LONGEST // PAGE + 1), generator=rng)
    return NextStep(
        rows=torch.randperm(num_reqs + 2, generator=rng)[:num_reqs],
        samples=torch.arange(num_reqs) < torch.randint(1, num_reqs + 1, (1,), generator=rng),
        block_table=table.to(torch.int32),
        input_ids=full(num_tokens),
        positions=full(num_tokens),
        slot_mapping=full(num_tokens),
        token_rows=full(num_tokens),
        query_start_loc=query_start_loc,
        seq_lens=full(num_reqs, dtype=torch.int32),
        lengths=full(num_reqs),
        num_drafts=full(num_reqs),
        first_rows=full(num_reqs),
        token_ids=full(num_reqs, width),
    )


# Compiled anew for each width, so the interpreted kernel gets a few of them.
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("width", "counted", "block"), [(1, True, 2), (3, False, 128), (3, True, 2), (3, False, 2)]
)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**31), num_reqs=st.integers(1, 5), most_tokens=st.integers(5, 40))
def test_the_kernel_writes_what_the_oracle_does(
    width: int, counted: bool, block: int, seed: int, num_reqs: int, most_tokens: int
) -> None:
    kernels = pytest.importorskip("sample_engine.speculate.kernels.next_step")
    rng = torch.Generator().manual_seed(seed)
    texts = torch.randint(0, 100, (num_reqs + 3, LONGEST + 1), generator=rng)
    lengths = torch.randint(1, LONGEST + 1, (num_reqs,), generator=rng)
    drafts = torch.randint(0, 100, (num_reqs, width), generator=rng)
    counts = torch.randint(0, width + 1, (num_reqs,), generator=rng) if counted else None
    ours = fields(num_reqs, width, most_tokens, rng)
    theirs = NextStep(**{name: value.clone() for name, value in vars(ours).items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_BLOCK", block)  # fewer than the requests, and more
        kernels.write_next_step(texts, lengths, drafts, counts, ours, PAGE, LONGEST, PAD_SLOT_ID)
    oracle.write_next_step(texts, lengths, drafts, counts, theirs, PAGE, LONGEST, PAD_SLOT_ID)
    for name, value in vars(theirs).items():
        assert torch.equal(getattr(ours, name), value), name
        if name not in ("rows", "samples", "block_table"):
            assert not (value == UNWRITTEN).any(), name
