"""What backends ask about a device: its compute capability, and how many processors it has."""

from __future__ import annotations

import torch

from sample_engine.errors import ConfigError

__all__ = ["capability_of", "num_processors"]

_PROCESSORS_OF_AN_INTERPRETER = 4


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a GPU, as NVML tells it; ``None`` where nobody knows it."""
    from sample_engine.device import platform

    if device.type != "cuda":
        return None
    try:
        return platform.device_capability(device.index or 0)
    except ConfigError:
        return None


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device in use; this one does ask the CUDA runtime."""
    if device.type != "cuda":
        return _PROCESSORS_OF_AN_INTERPRETER
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
