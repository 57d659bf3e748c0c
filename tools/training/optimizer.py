"""The optimizer: Muon for the matrices inside layers, AdamW for everything else.

Muon moves a matrix along its momentum with all singular values set to one (Jordan et al., 2024;
the coefficients are those of "The Polar Express", Amsel et al., 2025). Fused projections are cut
into the matrices that they are. Each step gets the factor of the learning rate from outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sample_engine.model.llama import Attention, SwiGLU

__all__ = ["Optimizer", "OptimizerSettings", "orthogonalized"]

_POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Rates and decay; of both optimizers at their peak."""

    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    momentum: float = 0.95
    weight_decay: float = 0.05


def orthogonalized(
    matrices: Tensor,  # [M, rows, columns]
) -> Tensor:
    """Return the matrices with their singular values set to about one."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in _POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Optimizer:
    """Both optimizers of one module."""

    def __init__(self, module: nn.Module, settings: OptimizerSettings) -> None:
        self._settings = settings
        cuts = dict(_matrices(module))
        self._matrices = list(cuts)
        self._momenta = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._groups = _by_shape(self._matrices, [cuts[matrix] for matrix in self._matrices])
        inside = set(map(id, self._matrices))
        rest = [parameter for parameter in module.parameters() if id(parameter) not in inside]
        self._adam = torch.optim.AdamW(
            rest,
            lr=settings.adam_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=rest[0].is_cuda,
        )

    def step(self, factor: float) -> None:
        """Move all parameters at ``factor`` times the peak rates, and clear their gradients."""
        for group in self._adam.param_groups:
            group["lr"] = self._settings.adam_rate * factor
        self._adam.step()
        self._adam.zero_grad()
        with torch.no_grad():
            self._muon_step(self._settings.muon_rate * factor)

    def _muon_step(self, rate: float) -> None:
        settings = self._settings
        gradients = [matrix.grad for matrix in self._matrices]
        torch._foreach_lerp_(self._momenta, gradients, 1 - settings.momentum)
        # Nesterov: the direction is where the momentum will be.
        moves = torch._foreach_lerp(gradients, self._momenta, settings.momentum)
        torch._foreach_mul_(self._matrices, 1 - rate * settings.weight_decay)
        for slices in self._groups:
            parts = [moves[index][start:stop] for index, start, stop in slices]
            update = orthogonalized(torch.stack(parts))
            targets = [self._matrices[index].data[start:stop] for index, start, stop in slices]
            scale = max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            torch._foreach_add_(targets, list(update.unbind()), alpha=-rate * scale)
        for matrix in self._matrices:
            matrix.grad = None


def _matrices(module: nn.Module) -> Iterable[tuple[nn.Parameter, list[int]]]:
    """Yield the matrices inside layers, and how many rows each matrix in them has."""
    for name, part in module.named_modules():
        if isinstance(part, Attention):
            yield part.qkv_proj.weight, [heads * part.head_dim for heads in part.heads]
            yield part.o_proj.weight, [part.o_proj.weight.shape[0]]
        elif isinstance(part, SwiGLU):
            rows = part.gate_up_proj.weight.shape[0]
            yield part.gate_up_proj.weight, [rows // 2, rows // 2]
            yield part.down_proj.weight, [part.down_proj.weight.shape[0]]
        elif name.endswith("fuse_proj"):
            yield part.weight, [part.weight.shape[0]]


def _by_shape(matrices: list[Tensor], cuts: list[list[int]]) -> list[list[tuple[int, int, int]]]:
    """Return slices (matrix, first row, last row), those of one shape together."""
    groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for index, (matrix, rows) in enumerate(zip(matrices, cuts, strict=True)):
        start = 0
        for count in rows:
            shape = (count, int(matrix.shape[1]))
            groups.setdefault(shape, []).append((index, start, start + count))
            start += count
    return list(groups.values())
