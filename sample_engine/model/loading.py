"""From a model's name to a module with weights on its device: from files, or random ones.

Which device and dtype, is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from sample_engine.errors import WeightsError
from sample_engine.model import checkpoint
from sample_engine.model.config import LlamaConfig
from sample_engine.model.config_file import TINY_FOLDER, is_shape_alone, read_config
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.model.llama import Llama

_Module = TypeVar("_Module", bound=nn.Module)

__all__ = ["TINY_FOLDER", "load_eagle_head", "load_model", "read_config"]


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
        if not path.is_file():
            raise WeightsError(
                f"speculative_config: method='eagle' needs a draft head, and {str(path)!r} is not "
                "there: put it beside the model's weights, or use method='ngram'."
            )
        config = _eagle_config(path, target)
    with torch.device("meta"):
        module = EagleHead(config)
    if path is None:
        return _filled(module, _random(module, torch.device(device), dtype, seed))
    parts = checkpoint.plain_parts(module)
    return _filled(module, checkpoint.read(path, parts, _placer(device, dtype)))


def _folder(model: str) -> Path:
    """Return where a model's files are."""
    if is_shape_alone(model):
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
