"""The chi-square test by which the tests of sampling compare counts with a distribution.

Who uses it fixes the seeds: a test then fails always or never.
"""

from __future__ import annotations

import torch

__all__ = ["FALSE_ALARM_RATE", "p_value"]

FALSE_ALARM_RATE = 1e-6  # how often such a test would fail over all seeds, if all is right


def p_value(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """How often counts would be this far off if the probabilities were right."""
    expected = probabilities.double() * counts.sum()
    assert counts[expected == 0].sum() == 0
    rare = expected < 10  # too rare for the test on their own: taken together
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2)) if len(counts) > 1 else 1.0
