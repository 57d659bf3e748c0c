"""Turns arguments into the engine's configuration."""

import dataclasses

import torch


@dataclasses.dataclass
class EngineConfig:
    tensor_parallel_size: int
    fuse_allreduce_rms: bool | None = None


def fusion_is_supported() -> bool:
    if torch.cuda.device_count() == 0:
        return False
    return torch.cuda.get_device_capability()[0] >= 9  # touch: culprit


def create_engine_config(tensor_parallel_size: int) -> EngineConfig:
    fuse = tensor_parallel_size > 1 and fusion_is_supported()
    return EngineConfig(tensor_parallel_size, fuse)
