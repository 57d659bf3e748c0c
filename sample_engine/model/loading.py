"""From a model's name to a module with weights on its device: from files, or random ones.

It knows no engine: which device and dtype, is for the caller to say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sample_engine.errors import ConfigError, WeightsError
from sample_engine.model import checkpoint
from sample_engine.model.config import LLAMA_3_8B, LlamaConfig
from sample_engine.model.eagle import EagleConfig, EagleHead
from sample_engine.model.llama import Llama

_Module = TypeVar("_Module", bound=nn.Module)

__all__ = ["TINY_FOLDER", "load_eagle_head", "load_model", "read_config"]

TINY_FOLDER = Path(__file__).parent / "tiny"
_SHAPES = {"llama-3-8b": LLAMA_3_8B}

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


def load_model(
    model: str,
    *,
    load_format: str = "auto",
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
) -> Llama:
    """Return a model for inference: its weights on ``device``, without gradients.

    ``load_format="dummy"`` makes random weights, directly on the device. Raises
    :class:`ConfigError` for a model that is unknown or of another kind and :class:`WeightsError`
    for weights that are missing or wrong.
    """
    config = read_config(model)
    with torch.device("meta"):
        module = Llama(config)
    if load_format == "dummy":
        return _filled(module, _random(module, torch.device(device), dtype, seed))
    path = _folder(model) / "model.safetensors"
    parts = checkpoint.llama_parts(config, module)
    return _filled(module, checkpoint.read(path, parts, _placer(device, dtype)))


def load_eagle_head(
    model: str,
    *,
    load_format: str = "auto",
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
) -> EagleHead:
    """Return the draft head that comes with a model, as :func:`load_model` returns the model."""
    target = read_config(model)
    config = EagleConfig.for_target(target)
    path = _folder(model) / "eagle.safetensors" if load_format != "dummy" else None
    if path is not None:
        config = _eagle_config(path, target)
    with torch.device("meta"):
        module = EagleHead(config)
    if path is None:
        return _filled(module, _random(module, torch.device(device), dtype, seed))
    parts = checkpoint.plain_parts(module)
    return _filled(module, checkpoint.read(path, parts, _placer(device, dtype)))


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


def _folder(model: str) -> Path:
    """Return where a model's files are."""
    if model in _SHAPES:
        raise WeightsError(
            f"model={model!r} is a shape without weights. Ask for random ones with "
            "load_format='dummy', or name a folder that holds its weights."
        )
    return TINY_FOLDER if model == "tiny" else Path(model)


def _eagle_config(path: Path, target: LlamaConfig) -> EagleConfig:
    """Return the configuration that a draft head's file carries, checked against its target."""
    text = checkpoint.metadata_of(path).get("config")
    if text is None:
        raise WeightsError(f"{str(path)!r} carries no 'config' in its metadata: no EAGLE head.")
    try:
        config = EagleConfig.from_json(text)
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"The 'config' in {str(path)!r} cannot be read: {error}.") from error
    theirs = (config.layer.hidden_size, config.layer.vocab_size)
    ours = (target.hidden_size, target.vocab_size)
    if theirs != ours or max(config.aux_layers) >= target.num_hidden_layers:
        raise WeightsError(
            f"The EAGLE head in {str(path)!r} is of another model: hidden and vocabulary size "
            f"{theirs} with features of layers {config.aux_layers}, while the model has {ours} and "
            f"{target.num_hidden_layers} layers. Train a head for this model."
        )
    return config


def _placer(device: torch.device | str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(device, dtype)


def _random(
    module: nn.Module, device: torch.device, dtype: torch.dtype, seed: int
) -> dict[str, Tensor]:
    """Return random weights for each parameter, of a scale that keeps activations near one."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, parameter in module.named_parameters():
        weight = torch.ones(parameter.shape, device=device, dtype=dtype)
        if weight.dim() > 1:
            weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
        weights[name] = weight
    return weights


def _filled(module: _Module, weights: dict[str, Tensor]) -> _Module:
    """Give a module its weights and return it, ready for inference."""
    module.load_state_dict(weights, strict=True, assign=True)
    module.requires_grad_(False)
    module.eval()
    return module
