"""From a model's name to its shape, read from ``config.json`` and checked.

It imports no torch, so that a front end can ask before it starts a core.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from sample_engine.errors import ConfigError
from sample_engine.model.config import LLAMA_3_8B, LlamaConfig

__all__ = ["TINY_FOLDER", "is_shape_alone", "read_config"]

TINY_FOLDER = Path(__file__).parent / "tiny"
_SHAPES = {"llama-3-8b": LLAMA_3_8B}
_ARCHITECTURE = "LlamaForCausalLM"

# Settings of a Llama that this engine computes in one way only, and that way.
_ONLY = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rope_scaling": None}
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def is_shape_alone(model: str) -> bool:
    """Whether a model is a shape that comes without weights."""
    return model in _SHAPES


def read_config(model: str) -> LlamaConfig:
    """Return the shape of a model. Raises :class:`ConfigError` where there is none, or no Llama."""
    if model in _SHAPES:
        return _SHAPES[model]
    path = (TINY_FOLDER if model == "tiny" else Path(model)) / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"model={model!r} is not one of 'tiny', {', '.join(map(repr, _SHAPES))}, and no folder "
            f"with a config.json ({str(path)!r} is not there)."
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} holds no JSON object: it cannot describe a model.")
    return _config_of(values, str(path))


def _config_of(values: dict[str, Any], path: str) -> LlamaConfig:
    """Build the configuration of a ``config.json`` of Hugging Face's, of today or of before."""
    rope = values.get("rope_parameters") or {}
    values = {**values, "rope_theta": values.get("rope_theta", rope.get("rope_theta", 10000.0))}
    wrong = [
        f"{name}={values[name]!r} is not supported, only {only!r}"
        for name, only in _ONLY.items()
        if values.get(name, only) != only
    ]
    if rope.get("rope_type", "default") != "default":
        wrong.append(f"rope_type={rope['rope_type']!r} is not supported, only 'default'")
    if values.get("model_type", "llama") != "llama":
        wrong.append(f"model_type={values['model_type']!r} is not supported, only 'llama'")
    named = values.get("architectures")
    if named is not None and named != [_ARCHITECTURE]:
        wrong.append(f"architectures={named!r} is not supported, only {[_ARCHITECTURE]!r}")
    wrong += [f"{name} is missing" for name in _COUNTS if name not in values]
    if not wrong:
        heads = values["num_attention_heads"]
        values.setdefault("num_key_value_heads", heads)
        if values.get("head_dim") is None and _is_count(heads) and _is_count(values["hidden_size"]):
            values["head_dim"] = values["hidden_size"] // heads
        wrong += _wrong_values(values)
    if wrong:
        raise ConfigError(f"{path!r} describes no model that the engine runs: {'; '.join(wrong)}.")
    names = (*_COUNTS, "num_key_value_heads", "head_dim", "eos_token_id")
    shape: dict[str, Any] = {name: values.get(name) for name in names}
    return LlamaConfig(
        **shape,
        rope_theta=float(values["rope_theta"]),
        rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _wrong_values(values: dict[str, Any]) -> list[str]:
    wrong = [
        f"{name}={values.get(name)!r} must be a whole number of at least 1"
        for name in (*_COUNTS, "num_key_value_heads", "head_dim")
        if not _is_count(values.get(name))
    ]
    for name in ("rope_theta", "rms_norm_eps"):
        value = values.get(name, 1.0)
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            wrong.append(f"{name}={value!r} must be a number above 0")
    eos = values.get("eos_token_id")
    if eos is not None and not (isinstance(eos, int) and eos >= 0):
        wrong.append(f"eos_token_id={eos!r} must be one token, or null")
    return wrong
