"""How the engine starts its processes."""

import multiprocessing

import torch


def cuda_is_unusable_after_fork() -> bool:
    return torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()


def get_mp_context():
    return multiprocessing.get_context("spawn" if cuda_is_unusable_after_fork() else "fork")
