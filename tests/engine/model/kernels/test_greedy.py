"""The greedy choice in Triton's interpreter: torch's argmax, and which rows are finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sample_engine.model.kernels import reference as oracle
from tests.engine.support.model_kernels import interpreted, random_tensor

pytest.importorskip("triton")
pytestmark = interpreted

INSTEAD = -7
SIZES = [1, 5, 300, 4096, 4097, 9000]


def _greedy(logits: Tensor) -> Tensor:
    from sample_engine.model.kernels.greedy import greedy

    return greedy(logits, INSTEAD)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_the_first_of_the_largest_logits_is_chosen(num_rows: int, size: int) -> None:
    wide = random_tensor(num_rows, 3, size)
    for logits in (wide[:, 1], wide[:, 1].round(), torch.zeros(num_rows, size)):  # with ties
        found = _greedy(logits)
        assert torch.equal(found, oracle.greedy(logits, INSTEAD))
        assert torch.equal(found[0], found[1])


def test_narrow_logits_are_judged_as_they_are() -> None:
    logits = random_tensor(3, 9000, dtype=torch.float16)  # with ties
    logits[2, 500] = float("inf")
    assert torch.equal(_greedy(logits)[:, :2], oracle.greedy(logits.float(), INSTEAD)[:, :2])
    assert int(_greedy(logits)[1, 2]) == INSTEAD


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("size", SIZES)
def test_a_row_that_is_not_finite_is_told_and_others_are_not(size: int, number: float) -> None:
    for place in {0, size // 2, size - 1}:
        logits = random_tensor(4, size)
        logits[2, place] = number
        logits[3] = number

        chosen, told = _greedy(logits)

        assert torch.equal(told[:2], logits[:2].argmax(-1))
        assert told[2:].tolist() == [INSTEAD, INSTEAD]
        assert ((chosen >= 0) & (chosen < size)).all()
        assert torch.equal(told, oracle.greedy(logits, INSTEAD)[1])
