"""The interpreted kernels of verification against their oracles, which test_rejection_rules tries.

Choices and drafts are of few kinds, so that runs of accepted drafts of any length occur.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.batch.scheduled_batch import NOT_FINITE
from sample_engine.speculate.kernels import reference as oracle

pytestmark = pytest.mark.usefixtures("interpreter")


def step_of(seed: int, width: int, num_reqs: int) -> dict[str, torch.Tensor]:
    """Requests with any number of drafts, some in the middle of a prompt, and what is said."""
    rng = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=rng)

    samples = numbers(0, 4, num_reqs) > 0
    num_drafts = numbers(0, width + 1, num_reqs)
    rows = torch.where(samples, num_drafts + 1, 0)
    drafts = numbers(0, 2, num_reqs, width)
    drafts[torch.arange(width) >= num_drafts.unsqueeze(-1)] = -1
    choice = numbers(0, 2, max(int(rows.sum()), 1))
    told = torch.where(numbers(0, 8, len(choice)) == 0, NOT_FINITE, choice)
    return {
        "drafts": drafts,
        "num_drafts": num_drafts,
        "first_rows": rows.cumsum(0) - rows,
        "samples": samples,
        "found": torch.stack((choice, told)),
        "accepted": numbers(0, 2, len(choice)) > 0,
    }


# Compiled anew for each width, so the interpreted kernel gets a few of them.
@pytest.mark.parametrize("by_rejection", [False, True], ids=["by choice", "by rejection"])
@pytest.mark.parametrize("width", [1, 3, 5])
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**31), num_reqs=st.integers(0, 6))
def test_what_is_certain_is_what_the_oracle_says(
    width: int, by_rejection: bool, seed: int, num_reqs: int
) -> None:
    kernels = pytest.importorskip("sample_engine.speculate.kernels.verdict")
    step = step_of(seed, width, num_reqs)
    if not by_rejection:
        del step["accepted"]
    found = kernels.accept(**step, not_finite=NOT_FINITE)
    expected = oracle.accept(**step, not_finite=NOT_FINITE)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**31), num_reqs=st.integers(0, 6))
def test_what_is_certain_is_written_behind_the_texts_and_nothing_else_is(
    seed: int, num_reqs: int
) -> None:
    kernels = pytest.importorskip("sample_engine.speculate.kernels.verdict")
    rng = torch.Generator().manual_seed(seed)
    texts = torch.full((7, 20), 50)
    rows = torch.randperm(7, generator=rng)[:num_reqs]
    lengths = torch.randint(0, 12, (num_reqs,), generator=rng)
    step = step_of(seed, 4, num_reqs)
    del step["accepted"]
    tokens, num_sampled = oracle.accept(**step, not_finite=NOT_FINITE)
    ours, theirs = texts.clone(), texts.clone()
    sums = kernels.append(ours, rows, lengths, tokens, num_sampled)
    assert torch.equal(sums, oracle.append(theirs, rows, lengths, tokens, num_sampled))
    assert torch.equal(ours[:, :-1], theirs[:, :-1]), "the last column is for what is nobody's"
    for row, length, count in zip(rows, lengths, num_sampled, strict=True):
        expected = tokens[rows.tolist().index(row), :count].clamp(min=0)
        assert torch.equal(ours[row, length : length + count], expected)
    assert int((ours != 50).sum()) == int(num_sampled.sum()), "and nothing else is written"
