"""How the engine starts its processes."""

import multiprocessing

import torch


def cuda_is_unusable_after_fork() -> bool:
    return torch.cuda.is_initialized()


def get_mp_context():
    return multiprocessing.get_context("spawn" if cuda_is_unusable_after_fork() else "fork")
