"""The shape of a Llama, and the shape of Llama 3 8B."""

from __future__ import annotations

import dataclasses

from sample_engine.errors import ConfigError

__all__ = ["LLAMA_3_8B", "LlamaConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """A Llama's shape, under the names of Hugging Face's ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit together."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim} must be even: RoPE turns pairs.")


LLAMA_3_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
    rope_theta=500000.0,
    tie_word_embeddings=False,
)
