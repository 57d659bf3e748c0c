"""The Llama: what is computed for each token. It knows no cache, no batch and no weights file.

Tokens of all requests come packed in one dimension. Whatever mixes tokens is behind the callable
``attend``; so the same module serves paged inference, CUDA graphs and training.

Shapes::

    T  tokens of this call, packed
    H, K, D  query heads, KV heads, head size
    C  hidden size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_engine.model.config import LlamaConfig

__all__ = ["Attend", "Attention", "DecoderLayer", "Llama", "RMSNorm", "SwiGLU", "rope_angles"]

# (layer index, q [T, H, D], k [T, K, D], v [T, K, D]) -> [T, H, D]. q and k come with RoPE applied.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# The same for one layer.
LayerAttend = Callable[[Tensor, Tensor, Tensor], Tensor]


class RMSNorm(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Scales each token to a root mean square of one, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(
        self,
        x: Tensor,  # [T, C]
    ) -> Tensor:
        """Return the normed tokens, in the dtype of ``x``."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def rope_angles(
    positions: Tensor,  # [T] int64
    head_dim: int,
    theta: float,
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotation of each position: ``[T, 1, D / 2]``, float32.

    They are worked out anew in each pass: a buffer would lose its digits in ``.to(bfloat16)``.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions[:, None, None].float() * theta ** (-pairs / head_dim)
    return angles.cos(), angles.sin()


def _rotate(
    x: Tensor,  # [T, H or K, D]
    cos: Tensor,  # [T, 1, D / 2]
    sin: Tensor,  # [T, 1, D / 2]
) -> Tensor:
    """Turn the pairs ``(x[i], x[i + D / 2])``; in float32, returned in the dtype of ``x``."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Grouped-query attention with RoPE. Its input may be wider than its output."""

    def __init__(self, config: LlamaConfig, in_size: int | None = None) -> None:
        super().__init__()
        self.heads = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.num_key_value_heads,
        )
        self.head_dim = config.head_dim
        size = config.hidden_size
        self.qkv_proj = nn.Linear(in_size or size, sum(self.heads) * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads[0] * self.head_dim, size, bias=False)

    def forward(
        self,
        x: Tensor,  # [T, C]
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
        attend: LayerAttend,
    ) -> Tensor:
        """Return what each token gathers from those it may see."""
        return self.gathered(attend(*self.queries_keys_values(x, cos, sin)))

    def queries_keys_values(
        self,
        x: Tensor,  # [T, C]
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
    ) -> tuple[Tensor, Tensor, Tensor]:  # [T, H, D], [T, K, D], [T, K, D]
        """Return what goes to ``attend``, with RoPE applied."""
        qkv = self.qkv_proj(x).view(x.shape[0], sum(self.heads), self.head_dim)
        q, k, v = qkv.split(self.heads, dim=1)
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def gathered(
        self,
        out: Tensor,  # [T, H, D], from attend
    ) -> Tensor:
        """Return the contribution ``[T, C]`` to the residual stream."""
        return cast(Tensor, self.o_proj(out.reshape(out.shape[0], -1)))


class SwiGLU(nn.Module):  # type: ignore[misc]  # torch is not followed
    """The gated feed-forward part."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(
        self,
        x: Tensor,  # [T, C]
    ) -> Tensor:
        """Return ``down(silu(gate(x)) * up(x))``."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return cast(Tensor, self.down_proj(F.silu(gate) * up))


class DecoderLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """One layer: attention and feed-forward, each normed before and added to the stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x: Tensor,  # [T, C]
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
        attend: LayerAttend,
    ) -> Tensor:
        """Return the residual stream after this layer."""
        return self.after_attention(x, attend(*self.before_attention(x, cos, sin)))

    def before_attention(
        self,
        x: Tensor,  # [T, C]
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
    ) -> tuple[Tensor, Tensor, Tensor]:  # [T, H, D], [T, K, D], [T, K, D]
        """Return what goes to ``attend``: the piece of the layer before it."""
        normed = self.input_layernorm(x)
        return self.self_attn.queries_keys_values(normed, cos, sin)

    def after_attention(
        self,
        x: Tensor,  # [T, C]
        out: Tensor,  # [T, H, D], from attend
    ) -> Tensor:
        """Return the residual stream after this layer: the piece of the layer after ``attend``."""
        x = x + self.self_attn.gathered(out)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A decoder of Llama's kind. Without weights of its own: ``loading`` fills them in."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,  # [T] int64
        positions: Tensor,  # [T] int64
        attend: Attend,
        aux_layers: Sequence[int] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the final normed hidden states ``[T, C]``, and features for a draft head.

        The features are the residual stream after each of ``aux_layers``, in their order.
        """
        cos, sin = rope_angles(positions, self.config.head_dim, self.config.rope_theta)
        x = self.embed_tokens(input_ids)
        streams = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, partial(attend, index))
            if index in aux_layers:
                streams[index] = x
        return self.norm(x), [streams[index] for index in aux_layers]

    def compute_logits(
        self,
        hidden: Tensor,  # [N, C], normed
    ) -> Tensor:
        """Return the logits ``[N, vocabulary]`` in float32."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight).float()
