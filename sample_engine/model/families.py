"""The families of models that the engine runs, and in what they differ from a Llama.

A family is a row here, where all that it differs in is a field of ``LlamaConfig``. Names and
defaults are those of Hugging Face's configurations. It imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["FAMILIES", "Family", "family_of"]

# Settings that the engine computes in one way only, and that way.
_ONLY: Mapping[str, Any] = MappingProxyType(
    {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "quantization_config": None,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "num_experts": None,
        "num_local_experts": None,
        "is_encoder_decoder": False,
        "is_causal": True,
        "per_layer_config": None,
    }
)
_LAYERS = ("full_attention", "sliding_attention")


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one architecture. ``usual``: what a configuration means that leaves it out."""

    model_type: str
    architecture: str
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding: str = "never"  # "always", where there is a window; "asked": by use_sliding_window
    usual: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def refused(self, values: Mapping[str, Any]) -> list[str]:
        """What a configuration asks for that is not supported, a line each."""
        return [
            f"{name}={values[name]!r} is not supported, only {only!r}"
            for name, only in _ONLY.items()
            if values.get(name, only) != only
        ]

    def windows(self, values: Mapping[str, Any]) -> tuple[tuple[int | None, ...], list[str]]:
        """The window of each layer, as ``LlamaConfig`` has it, and what is wrong, a line each."""
        count, window = values["num_hidden_layers"], values.get("sliding_window")
        kinds = values.get("layer_types")
        if kinds is not None:
            wrong = _wrong_kinds(kinds, count)
            if wrong:
                return (), wrong
        first, wrong = self._first_with_window(values)
        if wrong:
            return (), wrong
        why_none = "there is no sliding_window"
        if first is None:
            window = None
            why_none = (
                f"{self.model_type!r} has no windows"
                if self.sliding == "never"
                else "use_sliding_window is not true"
            )
        if kinds is None:
            kinds = [
                _LAYERS[window is not None and first is not None and index >= first]
                for index in range(count)
            ]
        if self.sliding == "always" and window is not None and _LAYERS[0] in kinds:
            return (), [f"layer_types has {_LAYERS[0]!r}, but {self.model_type!r} has none"]
        if window is None:
            if _LAYERS[1] in kinds:
                return (), [f"layer_types has {_LAYERS[1]!r}, but {why_none}"]
            return (), []
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            return (), [f"sliding_window={window!r} must be a whole number of at least 1, or null"]
        return tuple(window if kind == _LAYERS[1] else None for kind in kinds), []

    def _first_with_window(self, values: Mapping[str, Any]) -> tuple[int | None, list[str]]:
        """The first layer that has a window where ``layer_types`` does not say it; None: none."""
        if self.sliding != "asked":
            return (0 if self.sliding == "always" else None), []
        asked, first = values.get("use_sliding_window"), values.get("max_window_layers", 0)
        if asked not in (None, False, True):
            return None, [f"use_sliding_window={asked!r} must be true or false"]
        if not asked:
            return None, []
        if values.get("layer_types") is not None:
            return 0, []
        if isinstance(first, bool) or not isinstance(first, int):
            return None, [f"max_window_layers={first!r} must be a whole number"]
        return first, []


def _wrong_kinds(kinds: Any, count: int) -> list[str]:
    if not isinstance(kinds, list) or len(kinds) != count:
        return [f"layer_types must have a word for each of the {count} layers"]
    unknown = [kind for kind in kinds if kind not in _LAYERS]
    if unknown:
        return [f"layer_types has {unknown[0]!r}: not supported, only {' and '.join(_LAYERS)}"]
    return []


FAMILIES = (
    Family("llama", "LlamaForCausalLM", usual={"eos_token_id": 2}),
    Family(
        "mistral",
        "MistralForCausalLM",
        sliding="always",
        usual={"num_key_value_heads": 8, "sliding_window": 4096, "eos_token_id": 2},
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        qkv_bias=True,
        sliding="asked",
        usual={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        qk_norm=True,
        sliding="asked",
        usual={
            "num_key_value_heads": 32,
            "head_dim": 128,
            "sliding_window": 4096,
            "max_window_layers": 28,
        },
    ),
)


def family_of(values: Mapping[str, Any]) -> tuple[Family | None, list[str]]:
    """The family of a ``config.json``, and what is wrong with its names, a line each."""
    kind, named = values.get("model_type", "llama"), values.get("architectures")
    family = next((each for each in FAMILIES if each.model_type == kind), None)
    if family is None:
        known = ", ".join(repr(each.model_type) for each in FAMILIES)
        return None, [f"model_type={kind!r} is not supported, only {known}"]
    if named is not None and named != [family.architecture]:
        return None, [f"architectures={named!r} is not supported, only {[family.architecture]!r}"]
    return family, []
