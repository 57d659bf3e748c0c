"""The Llama: what is computed for each token.

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
from torch import Tensor, nn

from sample_engine.model import ops
from sample_engine.model.config import LlamaConfig
from sample_engine.model.rope import RopeAngles

__all__ = [
    "Attend",
    "Attention",
    "DecoderLayer",
    "Linear",
    "Llama",
    "RMSNorm",
    "SwiGLU",
]

# (layer index, q [T, H, D], k [T, K, D], v [T, K, D]) -> [T, H, D]. q and k come with RoPE applied.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# The same for one layer.
LayerAttend = Callable[[Tensor, Tensor, Tensor], Tensor]


def _is_looked_at(module: nn.Module) -> bool:
    """Whether somebody may want what single layers give: gradients, or a training's hooks."""
    return bool(module.training or torch.is_grad_enabled())


class RMSNorm(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Scales each token to a root mean square of one, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(
        self,
        x: Tensor,  # [..., C]
    ) -> Tensor:
        """Return the normed tokens, in the dtype of ``x``."""
        return ops.rms_norm(x, self.weight, self.eps)

    def of_sum(
        self,
        x: Tensor,  # [T, C]
        delta: Tensor,  # [T, C]
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return ``x + delta``, and that normed."""
        return ops.add_rms_norm(x, delta, self.weight, self.eps)


class Embedding(nn.Embedding):  # type: ignore[misc]  # torch is not followed
    """The vectors of tokens."""

    def reset_parameters(self) -> None:
        """Fill it with random numbers, if it has memory.

        If not, torch would import its compiler, which takes a second, and change nothing.
        """
        if not self.weight.is_meta:
            super().reset_parameters()


class Linear(nn.Linear):  # type: ignore[misc]  # torch is not followed
    """A linear layer, mostly without a bias."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool = False) -> None:
        super().__init__(in_size, out_size, bias=bias)

    def reset_parameters(self) -> None:
        """Fill it with random numbers, if it has memory: see ``Embedding``."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(
        self,
        x: Tensor,  # [T, in]
    ) -> Tensor:
        """Return ``[T, out]``."""
        out = ops.linear(x, self.weight)
        return out if self.bias is None else out + self.bias

    def added_to(
        self,
        residual: Tensor,  # [T, out]
        x: Tensor,  # [T, in]
    ) -> Tensor:
        """Return ``residual + self(x)``, in one go where nobody looks at ``self(x)``."""
        if _is_looked_at(self):
            return cast(Tensor, residual + self(x))
        return ops.linear(x, self.weight, residual)

    def added_and_normed(
        self,
        residual: Tensor,  # [T, out]
        x: Tensor,  # [T, in]
        norm: RMSNorm,
    ) -> tuple[Tensor, Tensor]:  # [T, out], [T, out]
        """Return ``residual + self(x)``, and that normed."""
        if _is_looked_at(self):
            total = self.added_to(residual, x)
            return total, norm(total)
        return ops.linear_added_and_normed(x, self.weight, residual, norm.weight, norm.eps)


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
        columns = sum(self.heads) * self.head_dim
        self.qkv_proj = Linear(in_size or size, columns, bias=config.qkv_bias)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.o_proj = Linear(self.heads[0] * self.head_dim, size)

    def queries_keys_values(
        self,
        x: Tensor,  # [T, C]
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
    ) -> tuple[Tensor, Tensor, Tensor]:  # [T, H, D], [T, K, D], [T, K, D]
        """Return what goes to ``attend``, with RoPE applied."""
        qkv = self.qkv_proj(x).view(x.shape[0], sum(self.heads), self.head_dim)
        if self.q_norm is None or self.k_norm is None:
            return ops.rotate_packed(qkv, self.heads, cos, sin)
        q, k, v = qkv.split(self.heads, dim=1)
        return (*ops.rotate(self.q_norm(q), self.k_norm(k), cos, sin), v)

    def added_and_normed(
        self,
        out: Tensor,  # [T, H, D], from attend
        stream: Tensor,  # [T, C]
        norm: RMSNorm,
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return ``stream`` and what attention adds to it, and that normed."""
        return self.o_proj.added_and_normed(stream, out.reshape(out.shape[0], -1), norm)


class SwiGLU(nn.Module):  # type: ignore[misc]  # torch is not followed
    """The gated feed-forward part."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(
        self,
        x: Tensor,  # [T, C], normed
        stream: Tensor,  # [T, C]
    ) -> Tensor:
        """Return ``stream + down(silu(gate(x)) * up(x))``."""
        return self.down_proj.added_to(stream, self._gated(x))

    def added_and_normed(
        self,
        x: Tensor,  # [T, C], normed
        stream: Tensor,  # [T, C]
        norm: RMSNorm,
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return what a call does, and that normed."""
        return self.down_proj.added_and_normed(stream, self._gated(x), norm)

    def _gated(
        self,
        x: Tensor,  # [T, C]
    ) -> Tensor:  # [T, intermediate size]
        if _is_looked_at(self):
            return ops.silu_and_mul(self.gate_up_proj(x))
        return ops.linear_gated(x, self.gate_up_proj.weight)


class DecoderLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """One layer: attention and feed-forward, each normed before and added to the stream.

    It ends with the norm of the layer after it, as adding to the stream and norming it go together.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x: Tensor,  # [T, C]
        normed: Tensor,  # [T, C], x by this layer's input_layernorm
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
        attend: LayerAttend,
        norm: RMSNorm,
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return the residual stream after this layer, and that by ``norm``."""
        out = attend(*self.before_attention(normed, cos, sin))
        return self.after_attention(x, out, norm)

    def before_attention(
        self,
        normed: Tensor,  # [T, C]
        cos: Tensor,  # [T, 1, D / 2]
        sin: Tensor,  # [T, 1, D / 2]
    ) -> tuple[Tensor, Tensor, Tensor]:  # [T, H, D], [T, K, D], [T, K, D]
        """Return what goes to ``attend``: the piece of the layer before it."""
        return self.self_attn.queries_keys_values(normed, cos, sin)

    def after_attention(
        self,
        x: Tensor,  # [T, C]
        out: Tensor,  # [T, H, D], from attend
        norm: RMSNorm,
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return what a call does: the piece of the layer after ``attend``."""
        norm_between = self.post_attention_layernorm
        x, normed = self.self_attn.added_and_normed(out, x, norm_between)
        return self.mlp.added_and_normed(normed, x, norm)


class Llama(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A decoder of Llama's kind. Without weights of its own: ``loading`` fills them in."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.angles = RopeAngles(config)
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head: Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)

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
        cos, sin = self.angles(positions)
        x, normed = self.embedded(input_ids)
        streams = {}
        for index, layer in enumerate(self.layers):
            attend_here, norm = partial(attend, index), self.norm_after(index)
            x, normed = layer(x, normed, cos, sin, attend_here, norm)
            if index in aux_layers:
                streams[index] = x
        return normed, [streams[index] for index in aux_layers]

    def embedded(
        self,
        input_ids: Tensor,  # [T] int64
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return the residual stream before the first layer, and that by the layer's norm."""
        x = self.embed_tokens(input_ids)
        return x, self.norm_after(-1)(x)

    def norm_after(self, layer: int) -> RMSNorm:
        """Return the norm of what a layer leaves: that of the next layer, or the last one."""
        after = layer + 1
        found = self.layers[after].input_layernorm if after < len(self.layers) else self.norm
        return cast(RMSNorm, found)

    def compute_logits(
        self,
        hidden: Tensor,  # [N, C], normed
    ) -> Tensor:
        """Return the logits ``[N, vocabulary]`` in float32."""
        return self.narrow_logits(hidden).float()

    def narrow_logits(
        self,
        hidden: Tensor,  # [N, C], normed
    ) -> Tensor:
        """Return the same in the dtype of the weights, as the output layer gives them."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return ops.linear(hidden, head.weight)
