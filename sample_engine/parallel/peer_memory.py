"""Memory of GPUs that the ranks of one host write to and read from each other, without multicast.

It is torch's symmetric memory: each rank makes a piece of the same size and learns where those of
the others lie in its own addresses. Not every machine has it, so ranks ask first.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, NamedTuple

import torch

__all__ = ["PeerMemory", "share_memory", "why_not_shared"]

_LEAST_CAPABILITY = (8, 0)  # that our kernels are for


class PeerMemory(NamedTuple):
    """The memory of all ranks, as one of them sees it."""

    own: torch.Tensor  # [bytes] uint8, this rank's own, zeros at the start
    addresses: tuple[int, ...]  # where that of each rank begins
    handle: Any  # keeps the others' mapped


def why_not_shared(device: torch.device, size: int) -> str | None:
    """Why this rank cannot reach the memory of the others' GPUs; None: it can.

    The ranks have the first ``size`` GPUs of this process.
    """
    if torch.version.cuda is None:
        return "the GPU is not NVIDIA's"
    for name in ("triton", "torch.distributed._symmetric_memory"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not there"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "the GPU is older than our kernels serve"
    for other in range(size):
        if other != device.index and not torch.cuda.can_device_access_peer(device.index, other):
            return f"GPU {device.index} cannot reach the memory of GPU {other}"
    return None


def share_memory(num_bytes: int, device: torch.device, group_name: str) -> PeerMemory:
    """Make so many bytes on each rank and map those of the others. All ranks call it together.

    Raises ``RuntimeError`` where the driver refuses. The memory lives as long as what is returned.
    """
    # Multicast needs rights that containers often lack, and may put a host's GPUs out of service.
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    from torch.distributed import _symmetric_memory as symmetric

    own = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
    own.zero_()
    torch.cuda.synchronize(device)
    handle = symmetric.rendezvous(own, group_name)
    return PeerMemory(own, tuple(int(each) for each in handle.buffer_ptrs), handle)
