"""Attention over whole windows, for training and measuring: no pages, no scheduler.

Shapes::

    B  windows of a batch      N  tokens of a window      T = B * N  tokens, packed
    H, K, D  query heads, KV heads, head size
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sample_engine.model.config import LlamaConfig
from sample_engine.model.llama import Attend

__all__ = ["CachedAttend", "UnrolledAttend", "causal_windows", "window_positions"]


def window_positions(
    windows: Tensor,  # [B, N]
) -> Tensor:
    """Return the position of each token in its window: ``[B * N]`` int64."""
    return torch.arange(windows.shape[1], device=windows.device).repeat(windows.shape[0])


def causal_windows(batch: int) -> Attend:
    """Return an attention of ``batch`` windows, each for itself."""

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (_by_window(x, batch) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    return attend


def _by_window(
    x: Tensor,  # [B * N, heads, D]
    batch: int,
) -> Tensor:
    """Return ``[B, heads, N, D]``."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


class UnrolledAttend:
    """Attention of a draft head over several guesses from every token at once.

    In its first step the head sees, at each token, the model's features of this token and of all
    before it. In a later step it sees these, and of the steps since then only its own guesses from
    this same token: exactly what it finds in its cache when it drafts.
    """

    def __init__(self, batch: int, length: int, steps: int, device: torch.device) -> None:
        self._batch = batch
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        before = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=device)
        self._mask = torch.cat((before, *[itself] * (steps - 1)), dim=1)  # [N, steps * N]

    def __call__(
        self,
        _: int,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
    ) -> Tensor:
        """Attend with the queries of the next step: ``[T, H, D]``."""
        group = q.shape[1] // k.shape[1]
        self._keys.append(_by_window(k, self._batch).repeat_interleave(group, dim=1))
        self._values.append(_by_window(v, self._batch).repeat_interleave(group, dim=1))
        keys, values = torch.cat(self._keys, dim=2), torch.cat(self._values, dim=2)
        mask = self._mask[:, : keys.shape[2]]
        q = _by_window(q, self._batch)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return out.transpose(1, 2).flatten(0, 1)


class CachedAttend:
    """Attention that remembers: a prompt first, then a token of each window at a time."""

    def __init__(
        self,
        config: LlamaConfig,
        batch: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._batch = batch
        self.length = 0  # tokens that are remembered; the caller moves it on after each pass
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, length)
        self._keys = torch.empty(*shape, config.head_dim, device=device, dtype=dtype)
        self._values = torch.empty_like(self._keys)

    def __call__(
        self,
        layer: int,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
    ) -> Tensor:
        """Remember keys and values, and attend to all that is remembered: ``[T, H, D]``."""
        q, k, v = (_by_window(x, self._batch) for x in (q, k, v))
        end = self.length + k.shape[2]
        self._keys[layer, :, :, self.length : end] = k
        self._values[layer, :, :, self.length : end] = v
        keys, values = self._keys[layer, :, :, :end], self._values[layer, :, :, :end]
        # One token at a time sees everything; a prompt begins with nothing remembered.
        causal = q.shape[2] > 1
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)
