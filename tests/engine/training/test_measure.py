"""Bits per byte, against what each token costs by itself."""

from __future__ import annotations

import math

import pytest
import torch

from tests.engine.support.model import plain_llama, random_llama
from tools.training.measure import bits_per_byte


def test_a_model_that_knows_nothing_pays_for_every_token_once() -> None:
    model = random_llama()
    model.norm.weight.data.zero_()
    tokens = torch.randint(257, (150,), generator=torch.Generator().manual_seed(0))

    for overlap in (True, False):
        for window in (8, 32, 256):
            found = bits_per_byte(model, tokens, window=window, overlap=overlap, batch=3)
            assert found.bits == pytest.approx(149 * math.log2(257))
            assert found.num_bytes == int((tokens[1:] < 256).sum())
            assert found.value == pytest.approx(found.bits / found.num_bytes)


def test_bits_per_byte_are_those_of_each_token_after_half_a_window() -> None:
    model = random_llama()
    tokens = torch.randint(256, (21,), generator=torch.Generator().manual_seed(1)).tolist()

    found = bits_per_byte(model, torch.tensor(tokens), window=8)

    bits = 0.0
    for index in range(1, 21):
        start = max(0, (index - 1) // 4 * 4 - 4)
        logits = plain_llama(model, tokens[start:index])[2][-1]
        bits -= float(logits.log_softmax(-1)[tokens[index]]) / math.log(2)
    assert found.bits == pytest.approx(bits, rel=1e-4)
