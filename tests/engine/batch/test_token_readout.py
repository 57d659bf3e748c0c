"""Tokens on their way to the CPU: those of several steps do not meet."""

from __future__ import annotations

import pytest
import torch

from sample_engine.batch.token_readout import TokenReadout

CPU = torch.device("cpu")


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_as_many_steps_may_be_under_way_as_there_are_places(steps: int) -> None:
    readout = TokenReadout(4, CPU, steps)
    for number in range(5):
        given = [[number * 10 + step] * (step + 1) for step in range(steps)]
        under_way = [readout.start(torch.tensor(tokens)) for tokens in given]
        assert [each.wait() for each in under_way] == given


def test_tokens_of_a_step_are_as_many_as_were_given() -> None:
    readout = TokenReadout(4, CPU)
    assert readout.start(torch.tensor([1, 2, 3, 4])).wait() == [1, 2, 3, 4]
    assert readout.start(torch.tensor([5])).wait() == [5]
