"""Starts one process per rank."""

import torch

from trainer.worker import run_in_worker


def device_type() -> str:
    module = torch.get_device_module()  # touch: culprit
    return module.__name__.rpartition(".")[2]


def launch(world_size: int) -> list[int]:
    backend = "nccl" if device_type() == "cuda" else "gloo"
    assert backend
    return [run_in_worker(int, rank) for rank in range(world_size)]
