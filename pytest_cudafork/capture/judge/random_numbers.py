"""The state of the default random generators: whether it moved, and putting it back."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["restored", "state_of"]


def state_of(backend: str) -> Any:
    """Return what changes whenever random numbers are drawn on the devices of a backend."""
    if backend == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        return generator.initial_seed(), generator.get_offset()
    return zlib.crc32(torch.get_rng_state().numpy().tobytes())


@contextlib.contextmanager
def restored(device: Any) -> Iterator[None]:
    """Put the states of the CPU and of a device back at the end of a ``with``."""
    cpu = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)
