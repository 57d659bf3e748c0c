"""What the tests of the model share: small shapes, random models, a Llama written out plainly.

The plain Llama is in float64, computes one sequence, keeps all projections apart, turns pairs by
complex numbers and shares no code with the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sample_engine.model.config import LlamaConfig
from sample_engine.model.llama import Attend, Llama

SMALL = LlamaConfig(
    vocab_size=257,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    eos_token_id=256,
)


def random_llama(config: LlamaConfig = SMALL, seed: int = 0) -> Llama:
    """Return a model whose parameters are all random, those of norms too."""
    model = Llama(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        parameter.data = noise * scale + (parameter.dim() == 1)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def packed_attend(lengths: Sequence[int]) -> Attend:
    """Return an attention of packed sequences, each causal and for itself."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (owner[:, None] == owner[None]).tril()

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    return attend


def plain_llama(
    model: Llama, tokens: Sequence[int], first_position: int = 0
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return final hidden states, the stream after each layer, and logits: all in float64."""
    config = model.config
    weights = {name: value.double() for name, value in model.state_dict().items()}

    def norm(x: Tensor, name: str) -> Tensor:
        size = (x.square().sum(-1, keepdim=True) / x.shape[-1] + config.rms_norm_eps).sqrt()
        return x / size * weights[name]

    def turned(x: Tensor) -> Tensor:  # [T, D]
        half = config.head_dim // 2
        rates = config.rope_theta ** (-torch.arange(half).double() / half)
        positions = torch.arange(first_position, first_position + len(x)).double()
        spin = torch.polar(torch.ones(len(x), half).double(), positions[:, None] * rates)
        pairs = torch.complex(x[:, :half].contiguous(), x[:, half:].contiguous()) * spin
        return torch.cat((pairs.real, pairs.imag), -1)

    def attention(x: Tensor, prefix: str) -> Tensor:
        queries, keys = config.num_attention_heads, config.num_key_value_heads
        rows = weights[prefix + "qkv_proj.weight"].split(config.head_dim)
        heads = []
        for head in range(queries):
            own = head * keys // queries
            q, k = turned(x @ rows[head].T), turned(x @ rows[queries + own].T)
            v = x @ rows[queries + keys + own].T
            seen = [
                ((k[: i + 1] @ q[i]) / config.head_dim**0.5).softmax(0) @ v[: i + 1]
                for i in range(len(x))
            ]
            heads.append(torch.stack(seen))
        return torch.cat(heads, -1) @ weights[prefix + "o_proj.weight"].T

    x = weights["embed_tokens.weight"][list(tokens)]
    streams = []
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        x = x + attention(norm(x, prefix + "input_layernorm.weight"), prefix + "self_attn.")
        y = norm(x, prefix + "post_attention_layernorm.weight")
        gate, up = (y @ weights[prefix + "mlp.gate_up_proj.weight"].T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ weights[prefix + "mlp.down_proj.weight"].T
        streams.append(x)
    hidden = norm(x, "norm.weight")
    head = weights.get("lm_head.weight", weights["embed_tokens.weight"])
    return hidden, streams, hidden @ head.T
