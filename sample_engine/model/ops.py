"""The operations of a layer, and of the choice of tokens after the last one.

They are computed by our kernels on a GPU, by plain torch everywhere else.
Torch it is on a CPU, where gradients are wanted, under ``torch.compile``, for mixed dtypes and
without Triton. Shapes: ``T`` tokens of this call, packed.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sample_engine.model.kernels import reference

if TYPE_CHECKING:
    from sample_engine.model.kernels.linear import LinearConfig

__all__ = [
    "add_rms_norm",
    "argmax",
    "greedy",
    "has_kernels",
    "join_rms_norms",
    "linear",
    "linear_added_and_normed",
    "linear_gated",
    "rms_norm",
    "rope_angles",
    "rotate",
    "rotate_packed",
    "silu_and_mul",
]

_LEAST_CAPABILITY = (8, 0)  # that Triton serves
_OVERLAPPING = (9, 0)
_NARROW = (torch.float16, torch.bfloat16)


def rms_norm(
    x: Tensor,  # [T, C]
    weight: Tensor,  # [C]
    eps: float,
) -> Tensor:  # [T, C]
    """Each token scaled to a root mean square of one, times ``weight``."""
    if x.dim() != 2 or not _in_kernels(x, weight):
        return reference.rms_norm(x, weight, eps)
    from sample_engine.model.kernels import rms_norm as kernels

    return kernels.rms_norm(x, weight, eps, overlap=_overlap(x.device))


def add_rms_norm(
    x: Tensor,  # [T, C]
    delta: Tensor,  # [T, C]
    weight: Tensor,  # [C]
    eps: float,
) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
    """``x + delta``, and that normed."""
    if x.dim() != 2 or not _in_kernels(x, delta, weight):
        return reference.add_rms_norm(x, delta, weight, eps)
    from sample_engine.model.kernels import rms_norm as kernels

    return kernels.add_rms_norm(x, delta, weight, eps, overlap=_overlap(x.device))


def join_rms_norms(
    xs: Sequence[Tensor],  # [T, C] each
    weights: Sequence[Tensor],  # [C] each
    eps: float,
) -> Tensor:  # [T, P * C], of P
    """:func:`rms_norm` of each of several, side by side."""
    if any(x.dim() != 2 for x in xs) or not _in_kernels(*xs, *weights):
        return _joined_in_torch(xs, weights, eps)
    from sample_engine.model.kernels import rms_norm as kernels

    if len(xs) > kernels.MOST_JOINED:
        return _joined_in_torch(xs, weights, eps)
    return kernels.join_rms_norms(xs, weights, eps, overlap=_overlap(xs[0].device))


def _joined_in_torch(xs: Sequence[Tensor], weights: Sequence[Tensor], eps: float) -> Tensor:
    normed = [rms_norm(x, weight, eps) for x, weight in zip(xs, weights, strict=True)]
    return torch.cat(normed, dim=-1)


def rope_angles(
    positions: Tensor,  # [T] int64
    head_dim: int,
    theta: float,
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotation of each position: ``[T, 1, D / 2]``, float32.

    They are worked out anew in each pass: a buffer would lose its digits in ``.to(bfloat16)``.
    """
    if torch.is_grad_enabled() or not _in_kernels(positions):
        return reference.rope_angles(positions, head_dim, theta)
    from sample_engine.model.kernels import rotate as kernels

    return kernels.rope_angles(positions, head_dim, theta, overlap=_overlap(positions.device))


def rotate(
    query: Tensor,  # [T, H, D]
    key: Tensor,  # [T, K, D]
    cos: Tensor,  # [T, 1, R / 2], R <= D
    sin: Tensor,  # [T, 1, R / 2]
) -> tuple[Tensor, Tensor]:  # [T, H, D], [T, K, D]
    """Queries and keys with the pairs ``(x[i], x[i + R / 2])`` of the first R numbers turned."""
    if not _in_kernels(query, key) or 2 * cos.shape[-1] != query.shape[-1]:
        return reference.rotate(query, key, cos, sin)
    from sample_engine.model.kernels import rotate as kernels

    return kernels.rotate(query, key, cos, sin, overlap=_overlap(query.device))


def rotate_packed(
    packed: Tensor,  # [T, H + 2 K, D]: queries, keys and values, as one projection gives them
    heads: Sequence[int],  # H, K, K
    cos: Tensor,  # [T, 1, R / 2], R <= D
    sin: Tensor,  # [T, 1, R / 2]
) -> tuple[Tensor, Tensor, Tensor]:  # [T, H, D], [T, K, D], [T, K, D]
    """Queries and keys as :func:`rotate` turns them, and values as they are."""
    at_once = packed.dtype == torch.float32 and 2 * cos.shape[-1] == packed.shape[-1]
    if packed.is_cuda or torch.is_grad_enabled() or not at_once:
        query, key, value = packed.split(heads, dim=1)
        return (*rotate(query, key, cos, sin), value)
    turned = reference.rotate_together(packed.narrow(1, 0, heads[0] + heads[1]), cos, sin)
    query, key = turned.split(heads[:2], dim=1)
    return query, key, packed.narrow(1, heads[0] + heads[1], heads[2])


def silu_and_mul(
    x: Tensor,  # [T, 2 * I]: gate and up
) -> Tensor:  # [T, I]
    """``silu(gate) * up`` of each token."""
    if x.dim() != 2 or not _in_kernels(x):
        return reference.silu_and_mul(x)
    from sample_engine.model.kernels import silu_and_mul as kernels

    return kernels.silu_and_mul(x, overlap=_overlap(x.device))


def linear(
    x: Tensor,  # [T, K]
    weight: Tensor,  # [N, K]
    residual: Tensor | None = None,  # [T, N]
) -> Tensor:  # [T, N]
    """``x @ weight.T``, plus ``residual``; of few tokens in our kernel, otherwise in cuBLAS."""
    config = _config_of_linear(x, weight, *([] if residual is None else [residual]))
    if config is None:
        return reference.linear(x, weight, residual)
    from sample_engine.model.kernels import linear as kernels

    return kernels.linear(x, weight, residual, config=config, overlap=_overlap(x.device))


def linear_added_and_normed(
    x: Tensor,  # [T, K]
    weight: Tensor,  # [N, K]
    residual: Tensor,  # [T, N]
    norm: Tensor,  # [N]
    eps: float,
) -> tuple[Tensor, Tensor]:  # [T, N], [T, N]
    """``x @ weight.T`` plus ``residual``, and that normed: of few tokens in two kernels."""
    config = _config_of_linear(x, weight, residual, norm)
    if config is None:
        total = linear(x, weight, residual)
        return total, rms_norm(total, norm, eps)
    from sample_engine.model.kernels.linear import linear_parts
    from sample_engine.model.kernels.rms_norm import add_parts_rms_norm

    overlap = _overlap(x.device)
    parts = linear_parts(x, weight, config=config, overlap=overlap)
    return add_parts_rms_norm(residual, parts, norm, eps, overlap=overlap)


def linear_gated(
    x: Tensor,  # [T, K]
    weight: Tensor,  # [2 * I, K]: gate and up
) -> Tensor:  # [T, I]
    """``silu_and_mul(x @ weight.T)``; of few tokens in one kernel."""
    config = _config_of_linear(x, weight)
    if config is None:
        return silu_and_mul(linear(x, weight))
    from sample_engine.model.kernels import linear as kernels

    return kernels.linear_gated(x, weight, config=config, overlap=_overlap(x.device))


def greedy(
    logits: Tensor,  # [N, V]
    instead: int,
) -> Tensor:  # [2, N] int64
    """The most likely token of each row; below it the same, or ``instead``.

    ``instead`` it is of rows with a NaN or an infinity. Of equal logits the first one counts.
    """
    if not _in_kernels(logits):
        return reference.greedy(logits, instead)
    from sample_engine.model.kernels import greedy as kernels

    return kernels.greedy(logits, instead, overlap=_overlap(logits.device))


def argmax(
    logits: Tensor,  # [N, V]
) -> Tensor:  # [N] int64
    """The most likely token of each row, the first one of equal logits."""
    if not _in_kernels(logits):
        return logits.argmax(dim=-1)
    return greedy(logits, 0)[0]


def has_kernels(device: torch.device) -> bool:
    """Whether our kernels can run on a device: a GPU that Triton serves, and Triton is there."""
    return device.type == "cuda" and _capability(device) >= _LEAST_CAPABILITY


def _config_of_linear(x: Tensor, weight: Tensor, *others: Tensor) -> LinearConfig | None:
    """How our kernel computes a linear layer; ``None``: it does not, or is slower."""
    narrow = x.dtype in _NARROW and x.dim() == 2 and weight.is_contiguous()
    if not narrow or not _in_kernels(x, weight, *others):
        return None
    from sample_engine.model.kernels import tuning

    return tuning.linear_config(*weight.shape) if x.shape[0] <= tuning.MOST_TOKENS else None


def _in_kernels(*tensors: Tensor) -> bool:
    """Whether a kernel may take these tensors."""
    first = tensors[0]
    if not first.is_cuda or first.dtype == torch.float64 or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    alike = all(tensor.dtype == first.dtype and _is_packed(tensor) for tensor in tensors)
    return alike and has_kernels(first.device)


def _is_packed(tensor: Tensor) -> bool:
    """Whether what belongs to a token lies in one piece, as the kernels read it."""
    inner = 1
    for dim in range(tensor.dim() - 1, 0, -1):
        if tensor.stride(dim) != inner:
            return False
        inner *= tensor.shape[dim]
    return bool(tensor.is_cuda)


def _overlap(device: torch.device) -> bool:
    from sample_engine.model.kernels import tuning

    return tuning.OVERLAP and _capability(device) >= _OVERLAPPING


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU in use; one that is not served if it is not NVIDIA's."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return (0, 0)
    major, minor = torch.cuda.get_device_capability(device)
    return int(major), int(minor)
