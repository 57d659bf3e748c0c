"""How the engine starts its processes."""

import multiprocessing
import os

import torch


def cuda_is_initialized() -> bool:
    return torch.cuda.is_initialized()


def _maybe_force_spawn() -> None:
    if cuda_is_initialized():
        os.environ["ENGINE_WORKER_MULTIPROC_METHOD"] = "spawn"


def get_mp_context():
    _maybe_force_spawn()
    return multiprocessing.get_context(os.environ.get("ENGINE_WORKER_MULTIPROC_METHOD", "fork"))
