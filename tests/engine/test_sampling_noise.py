"""Noise for other purposes than a choice: even, independent, and the same in every version."""

from __future__ import annotations

import pytest
import torch

from sample_engine.sampling import Purpose, gumbel, noise_keys, purpose_keys, seed_keys, uniform
from tests.engine.support.chi_square import FALSE_ALARM_RATE, p_value

DRAWS = 40_000


def test_numbers_between_0_and_1_are_spread_evenly_and_the_same_in_every_version() -> None:
    keys = noise_keys(seed_keys(torch.arange(DRAWS)), torch.full((DRAWS,), 3))
    for purpose in Purpose:
        numbers = uniform(purpose_keys(keys, purpose))
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts = torch.bincount((numbers * 50).long(), minlength=50)
        assert p_value(counts, torch.full((50,), 1 / 50)) > FALSE_ALARM_RATE
    numbers = uniform(purpose_keys(torch.tensor([0, -1]), Purpose.ACCEPTANCE))
    assert numbers.tolist() == pytest.approx(EXPECTED_NUMBERS, abs=1e-15)


EXPECTED_NUMBERS = [0.062463638070746286, 0.5604757150135657]


def test_the_noise_of_two_purposes_and_of_neighbouring_positions_is_independent() -> None:
    keys = noise_keys(seed_keys(torch.arange(DRAWS)), torch.full((DRAWS,), 3))
    after = noise_keys(seed_keys(torch.arange(DRAWS)), torch.full((DRAWS,), 4))
    logits = torch.zeros(DRAWS, 4)

    def drawn(keys: torch.Tensor) -> torch.Tensor:
        return (logits + gumbel(keys, torch.arange(4))).argmax(-1)

    choice = drawn(keys)
    residual = purpose_keys(keys, Purpose.RESIDUAL)
    evenly = (uniform(purpose_keys(keys, Purpose.ACCEPTANCE)) * 4).long()
    for one, other in [
        (choice, drawn(residual)),
        (choice, evenly),
        (drawn(residual), evenly),
        (drawn(residual), drawn(purpose_keys(after, Purpose.RESIDUAL))),
        (evenly, (uniform(purpose_keys(after, Purpose.ACCEPTANCE)) * 4).long()),
    ]:
        counts = torch.bincount(one * 4 + other, minlength=16)
        assert p_value(counts, torch.full((16,), 1 / 16)) > FALSE_ALARM_RATE
