"""From a model's name to a module with weights on its device: from files, or random ones.

Which device and dtype, is for the caller to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from sample_engine.errors import ConfigError, WeightsError
from sample_engine.model import checkpoint
from sample_engine.model.config import LlamaConfig
from sample_engine.model.config_file import TINY_FOLDER, is_shape_alone, read_config
from sample_engine.model.draft_vocabulary import D2T, T2D, draft_token_ids, spread_token_ids
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.model.llama import Llama
from sample_engine.model.settings_file import why_no_file
from sample_engine.model.shards import Shard

if TYPE_CHECKING:
    from sample_engine.model.parallel_llama import Collectives

_Module = TypeVar("_Module", bound=nn.Module)

__all__ = ["TINY_FOLDER", "load_eagle_head", "load_model", "read_config"]


def load_model(
    model: str,
    *,
    load_format: str = "auto",
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    ranks: Collectives | None = None,
) -> Llama:
    """Return a model for inference: its weights on ``device``, without gradients.

    ``load_format="dummy"`` makes random weights, directly on the device. With ``ranks`` it is this
    rank's part of the model, and nothing else of it is read. Raises :class:`ConfigError` for a
    model that is unknown or of another kind and :class:`WeightsError` for weights that are missing
    or wrong.
    """
    config = read_config(model)
    with torch.device("meta"):
        whole = module = Llama(config)
        if ranks is not None:
            module = _part_of(config, ranks)
    parts = checkpoint.llama_parts(config, whole)
    if ranks is not None:
        parts = checkpoint.parts_of_shard(parts, config, Shard(ranks.rank, ranks.size))
    if load_format == "dummy":
        return _filled(module, _random(whole, torch.device(device), dtype, seed, parts))
    path = _folder(model) / "model.safetensors"
    # A head that is the embedding may be stored, too.
    same = {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {}
    return _filled(module, checkpoint.read(path, parts, _placer(device, dtype), same=same))


def load_eagle_head(
    model: str,
    *,
    load_format: str = "auto",
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    draft_vocab_size: int | None = None,
) -> EagleHead:
    """Return the draft head that comes with a model, as :func:`load_model` returns the model.

    How large its draft vocabulary is, its file says; ``draft_vocab_size`` is for random weights,
    and must not contradict a file.
    """
    target = read_config(model)
    config = EagleConfig.for_target(target)
    path = _folder(model) / "eagle.safetensors" if load_format != "dummy" else None
    if path is not None:
        why = why_no_file(path)
        if why or not path.is_file():
            raise WeightsError(
                f"speculative_config: method='eagle' needs a draft head, and {str(path)!r} "
                + (why or "is not there: put it beside the model's weights, or use method='ngram'.")
            )
        config = _eagle_config(path, target)
        _check_draft_vocabulary(path, config, draft_vocab_size)
    elif draft_vocab_size is not None:
        config = dataclasses.replace(config, draft_vocab_size=draft_vocab_size)
    size, most = config.draft_vocab_size, target.vocab_size
    if size is not None and not 1 <= size <= most:
        raise ConfigError(
            f"speculative_config: draft_vocab_size={size} must be at least 1 and at most {most}, "
            "the tokens of the model's vocabulary."
        )
    with torch.device("meta"):
        module = EagleHead(config)
    parts = checkpoint.plain_parts(module)
    if path is None:
        token_ids = None if size is None else spread_token_ids(size, most)
        weights = _random(module, torch.device(device), dtype, seed, parts)
    else:
        token_ids = None if size is None else draft_token_ids(path, size, most)
        beside = () if size is None else (D2T, T2D)
        weights = checkpoint.read(path, parts, _placer(device, dtype), beside=beside)
    if token_ids is not None:
        module.draft_token_ids = token_ids.to(device)
    return _filled(module, weights)


def _check_draft_vocabulary(path: Path, config: EagleConfig, wished: int | None) -> None:
    if wished is not None and wished != config.num_guesses:
        raise WeightsError(
            f"speculative_config: draft_vocab_size={wished}, but the EAGLE head in {str(path)!r} "
            f"guesses among {config.num_guesses} tokens: leave it out. It is for random weights."
        )


def _part_of(config: LlamaConfig, ranks: Collectives) -> Llama:
    from sample_engine.model.parallel_llama import ParallelLlama

    return ParallelLlama(config, ranks)


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
    except (ValueError, RecursionError) as error:
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
    module: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    parts: checkpoint.Parts,
) -> dict[str, Tensor]:
    """Return random weights for each parameter, of a scale that keeps activations near one.

    They are made whole, whatever is taken of them: so the ranks' parts are those of one model.
    """
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, parameter in module.named_parameters():
        weight = torch.ones(parameter.shape, device=device, dtype=dtype)
        if weight.dim() > 1:
            weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
        elif name.endswith(".bias"):
            weight.normal_(std=0.1, generator=generator)
        weights[name] = _taken(weight, parts[name])
    return weights


def _taken(weight: Tensor, row: Sequence[checkpoint.Part]) -> Tensor:
    """Return what of a parameter is taken."""
    if not any(part.cut for part in row):
        return weight
    tensors = weight.split([part.shape[0] for part in row])
    pieces = (part.filled_up(part.piece_of(each)) for part, each in zip(row, tensors, strict=True))
    return torch.cat(list(pieces))


def _filled(module: _Module, weights: dict[str, Tensor]) -> _Module:
    """Give a module its weights and return it, ready for inference."""
    module.load_state_dict(weights, strict=True, assign=True)
    module.requires_grad_(False)
    module.eval()
    for part in module.modules():
        if isinstance(part, nn.Linear):
            _lay_out(part)
    return module


def _lay_out(part: nn.Linear) -> None:
    """On a CPU, keep a layer's weights by columns: same numbers, and a product reads them in order.

    In float32, with a few tokens, as when drafts are verified, it takes two thirds of the time. The
    products of narrower types want their rows, and take up to one and a half times as long without.
    """
    weight = part.weight
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        part.weight = nn.Parameter(weight.t().contiguous().t(), requires_grad=False)
