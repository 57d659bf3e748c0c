"""The kernel that puts the keys and values of a step into the paged cache.

The slot of a token says where it goes, whichever request it belongs to.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs

__all__ = ["write_kv"]


@jit
def _write_kv_kernel(
    key_ptr: tl.tensor,  # [T', K, D]
    value_ptr: tl.tensor,  # [T', K, D]
    key_cache_ptr: tl.tensor,  # [B, P, K, D]
    value_cache_ptr: tl.tensor,  # [B, P, K, D]
    slot_ptr: tl.tensor,  # [T'] int64
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    block_stride: tl.tensor,
    token_stride: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    wait_for_inputs(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        at = tl.arange(0, WIDTH_PAD)
        ok = at < WIDTH
        place = (slot // PAGE) * block_stride + (slot % PAGE) * token_stride
        key = tl.load(key_ptr + token * key_stride + at, mask=ok)
        value = tl.load(value_ptr + token * value_stride + at, mask=ok)
        tl.store(key_cache_ptr + place + at, key, mask=ok)
        tl.store(value_cache_ptr + place + at, value, mask=ok)


def write_kv(
    key: torch.Tensor,  # [T', K, D]
    value: torch.Tensor,  # [T', K, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    slot_mapping: torch.Tensor,  # [T'] int64
    *,
    overlap: bool = False,
) -> None:
    """Write keys and values to their slots; a negative slot (``PAD_SLOT_ID``) is skipped."""
    num_tokens = slot_mapping.shape[0]
    if num_tokens == 0:
        return
    width = key.shape[1] * key.shape[2]
    _write_kv_kernel[(num_tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        WIDTH=width,
        WIDTH_PAD=next_power_of_2(width),
        PAGE=key_cache.shape[1],
        OVERLAP=overlap,
        num_warps=4,
        launch_pdl=overlap,
    )
