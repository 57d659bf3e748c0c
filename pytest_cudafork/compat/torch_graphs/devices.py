"""What torch knows of GPUs, and what it holds of them and of the host."""

from __future__ import annotations

from typing import Any

import torch


def is_in_bad_fork() -> bool:
    """Whether this process was forked after torch had initialized CUDA."""
    return bool(torch.cuda._is_in_bad_fork())


def visible_gpus() -> int:
    """Return how many GPUs NVML shows, without initializing CUDA; -1: not known."""
    return int(getattr(torch.cuda, "_device_count_nvml", lambda: -1)())


def leave_pool(device: int, pool: Any) -> None:
    """Let the allocator of a device allocate in no graph's pool any more."""
    torch._C._cuda_endAllocateToPool(device, pool)


def empty_host_cache() -> None:
    """Give pinned memory of the host back that nothing uses; a build for the CPU has none."""
    if (empty := getattr(torch._C, "_host_emptyCache", None)) is not None:
        empty()
