"""The draft head in EAGLE-3's manner: one layer that guesses what the model will say next.

As for the model, what mixes tokens is behind ``attend``; the passes over a paged cache are in
``speculate.eagle``.

How it is used. After the model has seen tokens ``0..i`` and the next token ``i + 1`` is known, the
head gets at position ``i`` the model's features of token ``i``, fused, and the embedding of token
``i + 1``; its logits are a guess of token ``i + 2``. For a further guess it gets at position
``i + 1`` its own last hidden state and the embedding of the token that it guessed, and so on. Its
keys and values are its own; those of guesses are overwritten, once the model's features of these
positions are there.

A head may guess a part of the vocabulary alone, its *draft vocabulary*: of a large one most tokens
are rare, and the output layer is what a pass mostly reads. A token that is not in it is never
drafted, so verification makes of it what it makes of any wrong guess.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test", 2025.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import cast

from torch import Tensor, nn

from sample_engine.model import ops
from sample_engine.model.config import LlamaConfig
from sample_engine.model.llama import Attend, Attention, Linear, RMSNorm, SwiGLU
from sample_engine.model.rope import RopeAngles

__all__ = ["EagleConfig", "EagleHead"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """The shape of a draft head: that of its one layer, and whose features it gets."""

    layer: LlamaConfig
    aux_layers: tuple[int, ...]
    draft_vocab_size: int | None = None  # None: the whole vocabulary

    @property
    def num_guesses(self) -> int:
        """Tokens that it chooses among."""
        return self.draft_vocab_size or self.layer.vocab_size

    @classmethod
    def for_target(cls, target: LlamaConfig, intermediate_size: int | None = None) -> EagleConfig:
        """Return the usual head of a model: features of an early, a middle and the last layer."""
        last = target.num_hidden_layers - 1
        layer = dataclasses.replace(
            target,
            num_hidden_layers=1,
            intermediate_size=intermediate_size or target.intermediate_size,
            tie_word_embeddings=False,
            windows=(),
        )
        return cls(layer=layer, aux_layers=(min(1, last), (last + 1) // 2, last))

    @classmethod
    def from_json(cls, text: str) -> EagleConfig:
        """Return the configuration that :meth:`to_json` wrote.

        Raises :class:`ValueError` for a text that it did not write.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is no object")
        layer = LlamaConfig.of(values.get("layer", {}))
        aux, size = values.get("aux_layers"), values.get("draft_vocab_size")
        if not (isinstance(aux, list) and aux and all(type(i) is int and i >= 0 for i in aux)):
            raise ValueError(f"aux_layers={aux!r} must name layers by their numbers")
        if size is not None and type(size) is not int:
            raise ValueError(f"draft_vocab_size={size!r} must be a whole number, or null")
        return cls(layer=layer, aux_layers=tuple(aux), draft_vocab_size=size)

    def to_json(self) -> str:
        """Return the configuration as text, for the metadata of a weights file."""
        return json.dumps(dataclasses.asdict(self))


class EagleHead(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A draft head. The model's embedding is used, not stored again; the output layer is its own.

    Shapes: ``T`` tokens, packed; ``C`` hidden size of the model and of the head.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        layer = config.layer
        self.angles = RopeAngles(layer)
        size, eps = layer.hidden_size, layer.rms_norm_eps
        self.aux_norms = nn.ModuleList(RMSNorm(size, eps) for _ in config.aux_layers)
        self.fuse_proj = Linear(len(config.aux_layers) * size, size)
        self.embed_norm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps)
        self.self_attn = Attention(layer, in_size=2 * size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = SwiGLU(size, layer.intermediate_size)
        self.norm = RMSNorm(size, eps)
        self.lm_head = Linear(size, config.num_guesses)
        # [draft vocabulary] int64, ascending: the tokens; None: all. It comes with the weights.
        self.register_buffer("draft_token_ids", None, persistent=False)

    def fuse(
        self,
        aux: Sequence[Tensor],  # of each of aux_layers: [T, C]
    ) -> Tensor:
        """Return the model's features of several layers as one: ``[T, C]``."""
        return cast(Tensor, self.fuse_proj(_normed(self.aux_norms, aux)))

    def forward(
        self,
        embeddings: Tensor,  # [T, C], the model's embeddings of the next tokens
        hidden: Tensor,  # [T, C], fused features, or this head's own last hidden state
        positions: Tensor,  # [T] int64, of the features
        attend: Attend,
    ) -> Tensor:
        """Return the head's hidden states ``[T, C]``: for its logits, and for its next step."""
        cos, sin = self.angles(positions)
        x = _normed((self.embed_norm, self.hidden_norm), (embeddings, hidden))
        out = attend(0, *self.self_attn.queries_keys_values(x, cos, sin))
        x, normed = self.self_attn.added_and_normed(out, hidden, self.post_attention_layernorm)
        return cast(Tensor, self.mlp(normed, x))

    def compute_logits(
        self,
        hidden: Tensor,  # [N, C], as forward returns it
    ) -> Tensor:
        """Return the logits ``[N, draft vocabulary]`` of the guesses, in float32."""
        return self.narrow_logits(hidden).float()

    def narrow_logits(
        self,
        hidden: Tensor,  # [N, C], as forward returns it
    ) -> Tensor:
        """Return the same in the dtype of the weights: of a large vocabulary it is half of it."""
        return cast(Tensor, self.lm_head(self.norm(hidden)))

    def token_ids(
        self,
        guesses: Tensor,  # int64, columns of the logits
    ) -> Tensor:
        """Return the tokens that these guesses are."""
        return guesses if self.draft_token_ids is None else self.draft_token_ids[guesses]

    def over_vocabulary(
        self,
        logits: Tensor,  # [N, draft vocabulary] float32
    ) -> Tensor:
        """Return the logits of all tokens ``[N, vocabulary]``; what it cannot guess is excluded."""
        if self.draft_token_ids is None:
            return logits
        whole = logits.new_full((logits.shape[0], self.config.layer.vocab_size), float("-inf"))
        return whole.index_copy_(1, self.draft_token_ids, logits)


def _normed(
    norms: Iterable[RMSNorm],
    xs: Sequence[Tensor],  # [T, C] each
) -> Tensor:  # [T, P * C]
    """Several features, each by its norm, side by side."""
    norms = list(norms)
    return ops.join_rms_norms(xs, [norm.weight for norm in norms], norms[0].eps)
