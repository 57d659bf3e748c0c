"""The memory that captured work leaves its results in: made once, at fixed addresses.

What captured work reads is in ``batch.input_buffers``, where it lies for steps without graphs too.
Why results are copied here at all: the memory in a graph's pool is used again by
the next graph that is captured, so results that outlive a graph must not lie there.

Shapes::

    M  tokens of the largest graph
    C, H, K, D  hidden size, query heads, KV heads, head size
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sample_engine.attention.interface import AttentionSpec
from sample_engine.batch.input_buffers import KeptViews

__all__ = ["OutputBuffers", "PieceBuffers"]


class OutputBuffers:
    """What a forward pass leaves: hidden states, and features for a draft head."""

    def __init__(
        self,
        max_tokens: int,
        hidden_size: int,
        num_aux: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def rows() -> torch.Tensor:
            return torch.zeros(max_tokens, hidden_size, dtype=dtype, device=device)

        self.hidden = rows()  # [M, C]
        self.aux = [rows() for _ in range(num_aux)]  # [M, C] each
        self._views: KeptViews[int, tuple[torch.Tensor, list[torch.Tensor]]] = KeptViews()

    def store(
        self,
        hidden: torch.Tensor,  # [T', C]
        aux: Sequence[torch.Tensor],  # [T', C] each
    ) -> None:
        """Keep the results of a pass: device work, which may be captured."""
        self.hidden[: hidden.shape[0]].copy_(hidden)
        for kept, each in zip(self.aux, aux, strict=True):
            kept[: each.shape[0]].copy_(each)

    def of(self, num_tokens: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The results of a pass of so many tokens, until the next one."""

        def cut() -> tuple[torch.Tensor, list[torch.Tensor]]:
            return self.hidden[:num_tokens], [each[:num_tokens] for each in self.aux]

        return self._views.of(num_tokens, cut)


class PieceBuffers:
    """What passes from one piece of a pass to the next, and to the attention between them.

    All layers and all sizes use the same memory, one after the other.
    """

    def __init__(
        self,
        max_tokens: int,
        hidden_size: int,
        spec: AttentionSpec,
        mixed: torch.Tensor,  # [M, H, D], what attention returned
        rotary_dim: int | None = None,  # None: D
    ) -> None:
        def rows(*size: int, dtype: torch.dtype = spec.dtype) -> torch.Tensor:
            return torch.zeros(max_tokens, *size, dtype=dtype, device=spec.device)

        self.stream = rows(hidden_size)  # [M, C], the residual stream
        self.query = rows(spec.num_heads, spec.head_dim)  # [M, H, D]
        self.key = rows(spec.num_kv_heads, spec.head_dim)  # [M, K, D]
        self.value = rows(spec.num_kv_heads, spec.head_dim)  # [M, K, D]
        self.mixed = mixed
        angles = (1, (rotary_dim or spec.head_dim) // 2)
        self.cos = rows(*angles, dtype=torch.float32)  # [M, 1, R / 2]
        self.sin = rows(*angles, dtype=torch.float32)  # [M, 1, R / 2]
