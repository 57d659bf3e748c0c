"""Equal models have equal hashes, and any other weight is another model."""

from __future__ import annotations

import pytest
import torch

from sample_engine.kv_transfer import model_hash as module
from sample_engine.kv_transfer.model_hash import model_hash
from tests.engine.support.model import SMALL, random_llama


def test_it_is_that_of_the_weights() -> None:
    one, same, other = random_llama(), random_llama(), random_llama(seed=1)
    known = model_hash([one], (SMALL,))
    assert known == model_hash([same], (SMALL,))
    assert known != model_hash([other], (SMALL,))
    assert known != model_hash([one], (SMALL, 2))
    assert known != model_hash([one, one], (SMALL,))
    assert known != model_hash([one.to(torch.bfloat16)], (SMALL,))


def test_one_bit_or_two_numbers_exchanged_are_another_model() -> None:
    def of(*values: float) -> str:
        layer = torch.nn.Linear(len(values), 1, bias=False)
        layer.weight.data = torch.tensor([values])
        return model_hash([layer])

    assert of(1.0, 2.0, 3.0) != of(2.0, 1.0, 3.0)
    assert of(1.0, 2.0) != of(1.0, 2.0000002)
    assert of(0.0, 0.0) != of(0.0, -0.0)


def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(7, 5)
    known = model_hash([layer])
    monkeypatch.setattr(module, "_AT_ONCE", 3)
    assert model_hash([layer]) == known
