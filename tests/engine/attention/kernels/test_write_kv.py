"""Keys and values are written to their slots, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.attention.kernels import reference as oracle

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("interpreter")


def test_keys_and_values_go_to_their_slots_and_padding_nowhere() -> None:
    from sample_engine.attention.kernels.write_kv import write_kv

    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(7, 2, 3, 3, 40, generator=rng)  # as part of a fused projection
    key, value = wide[:, 0, 1], wide[:, 1, 2]
    slots = torch.tensor([5, PAD_SLOT_ID, 63, 16, PAD_SLOT_ID, 17, 40])
    caches = [torch.full((4, 16, 3, 40), float("nan")) for _ in range(4)]
    write_kv(key, value, caches[0], caches[1], slots)
    for cache, new in zip(caches, (key, value), strict=False):
        written = torch.zeros(64, dtype=torch.bool)
        written[slots[slots >= 0]] = True
        assert torch.equal(cache.view(64, 3, 40)[slots[slots >= 0]], new[slots >= 0])
        assert cache.view(64, 3, 40)[~written].isnan().all()
    oracle.write_kv(key, value, caches[2], caches[3], slots)
    assert all(torch.equal(caches[i].nan_to_num(), caches[i + 2].nan_to_num()) for i in range(2))
