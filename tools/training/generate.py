"""Plain batched generation, for data and measurements: one token of every window at a time.

For users it is the engine that generates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sample_engine.model.llama import Llama
from tools.training.attention import CachedAttend, window_positions

__all__ = ["continued"]


def continued(
    model: Llama,
    prompts: Tensor,  # [B, P] int64
    length: int,
    temperature: float,
    generator: torch.Generator,  # of the prompts' device
) -> Tensor:
    """Return the prompts with what the model says after them: ``[B, length]`` int64."""
    batch, start = prompts.shape
    weight = model.embed_tokens.weight
    attend = CachedAttend(model.config, batch, length, weight.device, weight.dtype)
    tokens = torch.empty(batch, length, dtype=torch.int64, device=prompts.device)
    tokens[:, :start] = prompts
    with torch.no_grad():
        hidden, _ = model(prompts.flatten(), window_positions(prompts), attend)
        hidden = hidden.view(batch, start, -1)[:, -1]
        for position in range(start, length):
            attend.length = position
            tokens[:, position] = _chosen(model.compute_logits(hidden), temperature, generator)
            if position + 1 < length:
                positions = torch.full((batch,), position, device=prompts.device)
                hidden, _ = model(tokens[:, position], positions, attend)
    return tokens


def _chosen(
    logits: Tensor,  # [B, V]
    temperature: float,
    generator: torch.Generator,
) -> Tensor:
    """Return a token for each row: ``[B]``."""
    if temperature == 0:
        return logits.argmax(-1)
    return (logits / temperature).softmax(-1).multinomial(1, generator=generator)[:, 0]
