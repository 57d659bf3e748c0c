"""What ``auto`` and ``None`` stand for, with this model on this machine. It loads nothing.

It runs in the engine core. It does not initialize CUDA: whether there is a GPU, NVML says.
"""

from __future__ import annotations

import dataclasses

import torch

from sample_engine.config import EngineConfig
from sample_engine.device import platform
from sample_engine.device.preflight import gpu_index, longest_text, why_no_gpu
from sample_engine.model.config import LlamaConfig

__all__ = ["Resolved", "resolve"]


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Where and in which precision a model runs, and how long a text may become."""

    device: torch.device
    dtype: torch.dtype
    max_model_len: int


def resolve(config: EngineConfig, model: LlamaConfig, rank: int = 0) -> Resolved:
    """Work out what the configuration leaves open, for a rank of a tensor parallel engine too.

    Raises :class:`ConfigError` for what this machine, the model or this engine does not offer.
    """
    device = _device(config.device, rank)
    names = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    default = torch.float32 if device.type == "cpu" else torch.bfloat16
    return Resolved(device, names.get(config.dtype, default), longest_text(config, model))


def _device(name: str, rank: int) -> torch.device:
    """The device of a rank: the first rank has the first GPU, the next one the next."""
    if name == "auto" and not _num_gpus():
        return torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    if name == "auto" or rank:
        name = f"cuda:{rank}"
    return torch.device("cuda", gpu_index(name, _num_gpus(), _why_no_gpu))


def _num_gpus() -> int:
    return platform.gpu_count() if torch.version.cuda is not None else 0


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    return why_no_gpu()
