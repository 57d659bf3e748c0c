"""What is no token of a vocabulary, whoever gave it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from sample_engine.batch.request_limits import vocabulary_tokens
from sample_engine.errors import PromptError


@pytest.mark.parametrize(
    "tokens", [(3, 4), numpy.array([3, 4]), [numpy.int32(3), 4], torch.tensor([3, 4])]
)
def test_tokens_of_arrays_and_tensors_become_plain_numbers(tokens: Any) -> None:
    found = vocabulary_tokens("0", tokens, 5)
    assert found == [3, 4]
    assert [type(token) for token in found] == [int, int]


@pytest.mark.parametrize(
    "tokens", [[1.5], ["a"], [None], [numpy.float32(1)], [-1], [5], [1, 1 << 70]]
)
def test_what_is_no_token_is_refused(tokens: Any) -> None:
    with pytest.raises(PromptError, match="Request '0'"):
        vocabulary_tokens("0", tokens, 5)
