"""The kernel of the gate: ``silu(gate) * up``, rounded in between as torch rounds it."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from sample_engine.kernels.common import jit
from sample_engine.kernels.overlap import launch_early, wait_for_inputs
from sample_engine.model.kernels.common import elements, rounded

__all__ = ["gated", "silu_and_mul"]

_BLOCK = 1024


@jit
def gated(gate: tl.tensor, up: tl.tensor, like: tl.tensor) -> Any:
    """``silu(gate) * up`` of float32 values, for the dtype that ``like`` points to."""
    return rounded(gate / (1.0 + tl.exp(-gate)), like) * up


@jit
def _silu_and_mul_kernel(
    x_ptr: tl.tensor,  # [T, 2 * I]
    out_ptr: tl.tensor,  # [T, I]
    x_stride: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < size
    wait_for_inputs(OVERLAP)
    gate = tl.load(x_ptr + token * x_stride + at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * x_stride + size + at, mask=ok, other=0.0).to(tl.float32)
    out = gated(gate, up, out_ptr)
    tl.store(out_ptr + token * size + at, out.to(out_ptr.dtype.element_ty), mask=ok)


def silu_and_mul(
    x: torch.Tensor,  # [T, 2 * I]: gate and up
    *,
    overlap: bool = False,
) -> torch.Tensor:  # [T, I]
    """``silu(gate) * up`` of each token."""
    num_tokens, x_stride = elements(x)
    size = x.shape[1] // 2
    out = torch.empty((num_tokens, size), dtype=x.dtype, device=x.device)
    if num_tokens:
        _silu_and_mul_kernel[(num_tokens, -(-size // _BLOCK))](
            x,
            out,
            x_stride,
            size,
            BLOCK=_BLOCK,
            OVERLAP=overlap,
            num_warps=4,
            launch_pdl=overlap,
        )
    return out
