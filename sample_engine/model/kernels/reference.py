"""The oracles: for each kernel a function of the same name and arguments in plain torch.

They are what runs where the kernels do not: on a CPU and wherever gradients are wanted. ``overlap``
and ``config`` say how a kernel is launched and mean nothing here, so they are left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sample_engine.sampling import finite_rows

__all__ = [
    "add_rms_norm",
    "greedy",
    "linear",
    "rms_norm",
    "rope_angles",
    "rope_rates",
    "rotate",
    "rotate_together",
    "silu_and_mul",
]


def rms_norm(
    x: Tensor,  # [..., C]
    weight: Tensor,  # [C]
    eps: float,
) -> Tensor:  # [..., C]
    """Each token scaled to a root mean square of one, times ``weight``; in float32."""
    if x.dtype == weight.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)  # the same in fewer operators
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight


def add_rms_norm(
    x: Tensor,  # [..., C]
    delta: Tensor,  # [..., C]
    weight: Tensor,  # [C]
    eps: float,
) -> tuple[Tensor, Tensor]:  # [..., C], [..., C]
    """``x + delta``, and that normed."""
    total = x + delta
    return total, rms_norm(total, weight, eps)


def rope_angles(
    positions: Tensor,  # [T] int64
    head_dim: int,
    theta: float,
) -> tuple[Tensor, Tensor]:  # [T, 1, D / 2] float32 each
    """Cosine and sine of the rotation of each position."""
    angles = positions[:, None, None].float() * rope_rates(head_dim, theta, positions.device)
    return angles.cos(), angles.sin()


def rope_rates(
    head_dim: int,
    theta: float,
    device: torch.device,
) -> Tensor:  # [D / 2] float32
    """How far each pair turns from one position to the next, in radians.

    It is worked out as where models are trained, to the last bit: at position 10,000 a rate that
    differs in it turns by a thousandth more.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    return 1.0 / theta ** (pairs / head_dim)


def rotate(
    query: Tensor,  # [T, H, D]
    key: Tensor,  # [T, K, D]
    cos: Tensor,  # [T, 1, R / 2], R <= D
    sin: Tensor,  # [T, 1, R / 2]
) -> tuple[Tensor, Tensor]:  # [T, H, D], [T, K, D]
    """Queries and keys with the pairs ``(x[i], x[i + R / 2])`` turned, in float32; the rest stays.

    The kernel turns whole heads, R = D.
    """
    return _turned(query, cos, sin), _turned(key, cos, sin)


def _turned(
    x: Tensor,  # [T, H or K, D]
    cos: Tensor,  # [T, 1, D / 2]
    sin: Tensor,  # [T, 1, D / 2]
) -> Tensor:
    turned = 2 * cos.shape[-1]
    first, second = x[..., :turned].float().chunk(2, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    if turned == x.shape[-1]:
        return torch.cat(parts, dim=-1).to(x.dtype)
    return torch.cat((*(part.to(x.dtype) for part in parts), x[..., turned:]), dim=-1)


def rotate_together(
    heads: Tensor,  # [T, N, D] float32: queries and keys side by side
    cos: Tensor,  # [T, 1, D / 2]
    sin: Tensor,  # [T, 1, D / 2]
) -> Tensor:  # [T, N, D]
    """What :func:`rotate` makes of them, bit for bit, in a third of the operators; no gradients."""
    halves = heads.unflatten(2, (2, -1))  # [T, N, 2, D / 2]
    turned = halves * cos.unsqueeze(1)
    first, second = (halves * sin.unsqueeze(1)).unbind(2)
    turned.select(2, 0).sub_(second)
    turned.select(2, 1).add_(first)
    return turned.flatten(2)


def silu_and_mul(
    x: Tensor,  # [..., 2 * I]: gate and up
) -> Tensor:  # [..., I]
    """``silu(gate) * up`` of each token."""
    gate, up = x.chunk(2, dim=-1)
    gated = F.silu(gate)
    # memory that is new costs a long prompt more than the product
    return gated * up if torch.is_grad_enabled() else gated.mul_(up)


def linear(
    x: Tensor,  # [..., K]
    weight: Tensor,  # [N, K]
    residual: Tensor | None = None,  # [..., N]
) -> Tensor:  # [..., N]
    """``x @ weight.T``, plus ``residual``."""
    out = F.linear(x, weight)
    if residual is None:
        return out
    in_place = residual.dtype == out.dtype and not torch.is_grad_enabled()
    return out.add_(residual) if in_place else residual + out


def greedy(
    logits: Tensor,  # [N, V]
    instead: int,
) -> Tensor:  # [2, N] int64
    """The most likely token of each row; below it the same, or ``instead`` of a row with a NaN."""
    chosen = logits.argmax(dim=-1)
    return torch.stack((chosen, torch.where(finite_rows(logits), chosen, instead)))
