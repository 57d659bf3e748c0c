"""Keys and values are written to their slots, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.kernels.fp8_cache import allocate, blocks_of

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(3, 40), (1, 128)])
def test_an_fp8_cache_gets_the_bytes_that_the_oracle_writes(
    heads: int, dim: int, dtype: torch.dtype
) -> None:
    from sample_engine.attention.kernels.write_kv import write_kv

    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(40, 2, heads, dim, generator=rng) * 2.0 ** torch.randint(
        -14, 6, (40, 2, heads, dim), generator=rng
    )
    wide[0, 0] = 0.0
    wide[1, 1, 0, 0], wide[2, 0, -1, 1], wide[3, 0, 0, 2] = torch.nan, torch.inf, -torch.inf
    wide[4] = (torch.arange(dim) % 17 - 8) / 8 * 2.0**-9  # halves of the smallest steps
    wide[4, :, :, 0] = 448.0
    wide[5, :, :, 0], wide[6, :, :, 0] = 448.1, -0.0
    wide = wide.to(dtype)
    slots = 16 + torch.randperm(48, generator=rng)[:40]  # block 0 is nobody's
    slots[7] = PAD_SLOT_ID
    caches = [allocate(4, 16, heads, dim, torch.device("cpu")) for _ in range(4)]
    write_kv(wide[:, 0], wide[:, 1], caches[0], caches[1], slots)
    oracle.write_kv(wide[:, 0], wide[:, 1], caches[2], caches[3], slots)
    for mine, expected in ((caches[0], caches[2]), (caches[1], caches[3])):
        assert torch.equal(blocks_of(mine), blocks_of(expected))
        assert blocks_of(mine).any()
