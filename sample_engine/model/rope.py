"""RoPE's angles for a model: the usual ones, or scaled for longer texts than it was trained on.

Scaled ones are worked out anew in each pass by operations on the device, of which a graph can be
captured. Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sample_engine.model import ops
from sample_engine.model.config import LlamaConfig, RopeScaling
from sample_engine.model.kernels import reference

__all__ = ["RopeAngles", "angles_of", "scaled_rates"]

_MOST_NUMBERS = 1 << 24  # of a table


class RopeAngles:
    """The angles of a model: worked out for each pass, or read from a table where there is one."""

    def __init__(self, config: LlamaConfig) -> None:
        self._config = config
        self._table: tuple[Tensor, Tensor] | None = None

    def tabulate(self, length: int, device: torch.device) -> None:
        """Keep those of the positions below ``length``, unless they are too many.

        On a CPU to look them up takes a fifth of the operators. It is no buffer of the model, which
        would lose its digits in ``.to(bfloat16)``.
        """
        dim = self._config.rotary_dim or self._config.head_dim
        if length * dim <= _MOST_NUMBERS:
            with torch.inference_mode():
                self._table = angles_of(torch.arange(length, device=device), self._config)

    def __call__(
        self,
        positions: Tensor,  # [T] int64
    ) -> tuple[Tensor, Tensor]:  # [T, 1, rotary dim / 2] float32 each
        """Cosine and sine of the rotation of each position, as ``ops.rotate`` takes them."""
        if self._table is None or torch.is_grad_enabled():
            return angles_of(positions, self._config)
        cos, sin = self._table
        return cos.index_select(0, positions), sin.index_select(0, positions)


def angles_of(
    positions: Tensor,  # [T] int64
    config: LlamaConfig,
) -> tuple[Tensor, Tensor]:  # [T, 1, rotary dim / 2] float32 each
    """Cosine and sine of the rotation of each position, as ``ops.rotate`` takes them."""
    dim, scaling = config.rotary_dim or config.head_dim, config.rope_scaling
    if scaling is None:
        return ops.rope_angles(positions, dim, config.rope_theta)
    rates = reference.rope_rates(dim, config.rope_theta, positions.device)
    rates = scaled_rates(rates, dim, config.rope_theta, scaling)
    angles = positions[:, None, None].float() * rates
    return angles.cos() * scaling.attention_factor, angles.sin() * scaling.attention_factor


def scaled_rates(
    rates: Tensor,  # [dim / 2] float32: radians a position, from fast to slow
    dim: int,
    theta: float,
    scaling: RopeScaling,
) -> Tensor:  # [dim / 2] float32
    """How fast each pair turns with a scaling."""
    slowed = rates / scaling.factor
    if scaling.kind == "linear":
        return slowed
    if scaling.kind == "llama3":
        turns = scaling.original_max_position_embeddings * rates / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return slowed * (1 - kept) + rates * kept
    if scaling.kind == "yarn":
        first, last = scaling.yarn_bounds(dim, theta)
        place = torch.arange(dim // 2, dtype=torch.float32, device=rates.device)
        kept = 1 - ((place - first) / (last - first)).clamp(0, 1)
        return slowed * (1 - kept) + rates * kept
    raise AssertionError(f"rope_settings let the scaling {scaling.kind!r} pass")
