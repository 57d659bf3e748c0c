"""The kernel that norms tokens, and before that adds to them what a layer gives.

Sums are float32; what is rounded on the way is what torch rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs
from sample_engine.model.kernels.common import elements, rounded

__all__ = ["MOST_JOINED", "add_parts_rms_norm", "add_rms_norm", "join_rms_norms", "rms_norm"]

MOST_JOINED = 3  # norms that one launch computes side by side
_PER_WARP = 512  # features


@jit
def _scaled(
    x: tl.tensor,  # [SIZE_PAD] float32
    weight: tl.tensor,  # [SIZE_PAD] float32
    eps: tl.tensor,
    like: tl.tensor,  # a pointer to the dtype of the result
    SIZE: tl.constexpr,
) -> Any:
    """A token scaled to a root mean square of one, times its weight."""
    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    return rounded(x * scale, like) * weight


@jit
def _rms_norm_kernel(
    x_ptr: tl.tensor,  # [T, C]
    delta_ptr: tl.tensor,  # [T, C], read with ADD alone; with PARTS [PARTS, T, C] float32
    weight_ptr: tl.tensor,  # [C]
    sum_ptr: tl.tensor,  # [T, C], written with ADD alone
    out_ptr: tl.tensor,  # [T, C]
    x_stride: tl.tensor,
    delta_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    ADD: tl.constexpr,
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE_PAD)
    ok = at < SIZE
    wait_for_inputs(OVERLAP)
    weight = tl.load(weight_ptr + at, mask=ok, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + token * x_stride + at, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        delta = tl.zeros([SIZE_PAD], tl.float32)
        if PARTS:
            for part in tl.static_range(PARTS):
                place = (part * tl.num_programs(0) + token) * delta_stride + at
                delta += tl.load(delta_ptr + place, mask=ok, other=0.0)
            delta = rounded(delta, sum_ptr)
        else:
            place = token * delta_stride + at
            delta = tl.load(delta_ptr + place, mask=ok, other=0.0).to(tl.float32)
        total = (x + delta).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + token * SIZE + at, total, mask=ok)
        x = total.to(tl.float32)
    normed = _scaled(x, weight, eps, out_ptr, SIZE)
    tl.store(out_ptr + token * SIZE + at, normed.to(out_ptr.dtype.element_ty), mask=ok)


@jit
def _join_rms_norms_kernel(
    first_ptr: tl.tensor,  # [T, C]
    second_ptr: tl.tensor,  # [T, C]
    third_ptr: tl.tensor,  # [T, C]
    first_weight_ptr: tl.tensor,  # [C]
    second_weight_ptr: tl.tensor,  # [C]
    third_weight_ptr: tl.tensor,  # [C]
    out_ptr: tl.tensor,  # [T, P * C], of P norms
    first_stride: tl.tensor,
    second_stride: tl.tensor,
    third_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, SIZE_PAD)
    # Of the three a program reads one.
    first = at < tl.where(part == 0, SIZE, 0)
    second = at < tl.where(part == 1, SIZE, 0)
    third = at < tl.where(part == 2, SIZE, 0)
    wait_for_inputs(OVERLAP)
    x = tl.load(first_ptr + token * first_stride + at, mask=first, other=0.0)
    x += tl.load(second_ptr + token * second_stride + at, mask=second, other=0.0)
    x += tl.load(third_ptr + token * third_stride + at, mask=third, other=0.0)
    weight = tl.load(first_weight_ptr + at, mask=first, other=0.0)
    weight += tl.load(second_weight_ptr + at, mask=second, other=0.0)
    weight += tl.load(third_weight_ptr + at, mask=third, other=0.0)
    normed = _scaled(x.to(tl.float32), weight.to(tl.float32), eps, out_ptr, SIZE)
    place = (token * tl.num_programs(1) + part) * SIZE + at
    tl.store(out_ptr + place, normed.to(out_ptr.dtype.element_ty), mask=at < SIZE)


def rms_norm(
    x: torch.Tensor,  # [T, C]
    weight: torch.Tensor,  # [C]
    eps: float,
    *,
    overlap: bool = False,
) -> torch.Tensor:  # [T, C]
    """Each token scaled to a root mean square of one, times ``weight``."""
    return _launch(x, None, weight, eps, overlap)[1]


def add_rms_norm(
    x: torch.Tensor,  # [T, C]
    delta: torch.Tensor,  # [T, C]
    weight: torch.Tensor,  # [C]
    eps: float,
    *,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # [T, C], [T, C]
    """``x + delta``, and that normed."""
    return _launch(x, delta, weight, eps, overlap)


def add_parts_rms_norm(
    x: torch.Tensor,  # [T, C]
    parts: torch.Tensor,  # [P, T, C] float32, contiguous: of ``linear_parts``
    weight: torch.Tensor,  # [C]
    eps: float,
    *,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # [T, C], [T, C]
    """``x`` and the sum of the parts, and that normed."""
    assert parts.is_contiguous(), "parts lie as they were made"
    return _launch(x, parts, weight, eps, overlap)


def join_rms_norms(
    xs: Sequence[torch.Tensor],  # [T, C] each, at most MOST_JOINED
    weights: Sequence[torch.Tensor],  # [C] each
    eps: float,
    *,
    overlap: bool = False,
) -> torch.Tensor:  # [T, P * C]
    """:func:`rms_norm` of each of several, side by side."""
    count, (num_tokens, size) = len(xs), xs[0].shape
    out = torch.empty((num_tokens, count * size), dtype=xs[0].dtype, device=xs[0].device)
    given = [index if index < count else 0 for index in range(MOST_JOINED)]
    if num_tokens:
        _join_rms_norms_kernel[(num_tokens, count)](
            *(xs[index] for index in given),
            *(weights[index] for index in given),
            out,
            *(elements(xs[index])[1] for index in given),
            eps,
            SIZE=size,
            SIZE_PAD=next_power_of_2(size),
            OVERLAP=overlap,
            num_warps=_num_warps(size),
            launch_pdl=overlap,
        )
    return out


def _num_warps(size: int) -> int:
    return min(16, max(1, next_power_of_2(size) // _PER_WARP))


def _launch(
    x: torch.Tensor,  # [T, C]
    delta: torch.Tensor | None,  # [T, C], or parts [P, T, C]
    weight: torch.Tensor,  # [C]
    eps: float,
    overlap: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, x_stride = elements(x)
    size = x.shape[1]
    out = torch.empty((num_tokens, size), dtype=x.dtype, device=x.device)
    parts = delta.shape[0] if delta is not None and delta.dim() == 3 else 0
    total = out if delta is None else torch.empty_like(out)
    if num_tokens:
        _rms_norm_kernel[(num_tokens,)](
            x,
            x if delta is None else delta,
            weight,
            total,
            out,
            x_stride,
            x_stride if delta is None else elements(delta[0] if parts else delta)[1],
            eps,
            SIZE=size,
            SIZE_PAD=next_power_of_2(size),
            ADD=delta is not None,
            PARTS=parts,
            OVERLAP=overlap,
            num_warps=_num_warps(size),
            launch_pdl=overlap,
        )
    return total, out
