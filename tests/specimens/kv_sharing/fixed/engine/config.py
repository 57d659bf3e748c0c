"""The settings that both engines share."""

import dataclasses

import torch


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclasses.dataclass
class KVTransferConfig:
    role: str
    device: str = dataclasses.field(default_factory=default_device)
