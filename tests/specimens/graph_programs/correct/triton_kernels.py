# mypy: ignore-errors
"""Small Triton kernels and what launches them; importing this needs triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["added", "scaled", "scaled_by"]


@triton.jit
def _scale_kernel(x_ptr, out_ptr, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(out_ptr + at, x * factor, mask=at < count)


@triton.jit
def _scale_by_kernel(x_ptr, out_ptr, factor_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(out_ptr + at, x * tl.load(factor_ptr), mask=at < count)


@triton.jit
def _add_kernel(x_ptr, total_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    total = tl.load(total_ptr + at, mask=at < count)
    tl.store(total_ptr + at, x + total, mask=at < count)


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply by a number of Python."""
    out = torch.empty_like(x)
    _scale_kernel[(triton.cdiv(x.numel(), 16),)](x, out, factor, x.numel(), BLOCK=16)
    return out


def scaled_by(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply by a number of the device."""
    out = torch.empty_like(x)
    _scale_by_kernel[(triton.cdiv(x.numel(), 16),)](x, out, factor, x.numel(), BLOCK=16)
    return out


def added(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Add to a buffer, and return a copy of it."""
    _add_kernel[(triton.cdiv(x.numel(), 16),)](x, total, x.numel(), BLOCK=16)
    return total * 1
