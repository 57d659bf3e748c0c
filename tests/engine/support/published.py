"""Small random models of each family, written by ``transformers`` as published ones are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIZE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # not hidden / heads
    "max_position_embeddings": 128,
    "initializer_range": 0.5,  # large enough for angles and windows to make a difference
    "pad_token_id": None,
    "eos_token_id": [7, 11],
}
_ROPE = {"rope_theta": 10000.0, "factor": 4.0}
_YARN = {**_ROPE, "rope_type": "yarn", "original_max_position_embeddings": 32}
_LLAMA3 = {
    **_ROPE,
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}),
    "llama3": ("Llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "linear": ("Llama", {"rope_parameters": {**_ROPE, "rope_type": "linear"}}),
    "dynamic": ("Llama", {"rope_parameters": {**_ROPE, "rope_type": "dynamic"}}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "qwen2": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen2, windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"rope_parameters": {**_YARN, "attention_factor": 1.5}}),
}
"""A name for each, the prefix of its classes, and in what it differs from :data:`SIZE`."""


class Published(NamedTuple):
    """A model of transformers, and the folder that it was saved to, in several files."""

    model: Any
    folder: Path

    def logits(self, tokens: list[int]) -> Tensor:
        """Return the logits ``[T, vocabulary]`` of a text."""
        with torch.inference_mode():
            found: Tensor = self.model(torch.tensor([tokens])).logits[0]
        return found

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """Return what follows, at most so many tokens, the end-of-text token included."""
        ids = torch.tensor([tokens])
        mask = torch.ones_like(ids)  # otherwise it guesses which tokens are padding
        out = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        found: list[int] = out[0, len(tokens) :].tolist()
        return found


def published(folder: Path) -> Iterator[tuple[str, Published]]:
    """Make and save each of :data:`MODELS`."""
    yield from zip(MODELS, made_of(folder, MODELS), strict=True)


def made_of(folder: Path, models: Mapping[str, tuple[str, dict[str, Any]]]) -> Iterator[Published]:
    """Make and save models."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    for number, (name, (prefix, changes)) in enumerate(models.items()):
        config = getattr(transformers, f"{prefix}Config")(**{**SIZE, **changes})
        torch.manual_seed(number)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if parameter.dim() == 1:  # norms and biases, which are ones and zeros otherwise
                    parameter.copy_(torch.randn(parameter.shape) * 0.2 + ("norm" in key))
        path = folder / name.replace(", ", "-")
        model.save_pretrained(path, max_shard_size="40KB")
        yield Published(model, path)
