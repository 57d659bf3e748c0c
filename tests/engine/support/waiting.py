"""Checks that device code waits for nothing: what waits raises."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_waiting", "set_sync_mode"]


def set_sync_mode(mode: str | int) -> None:
    """Say what torch does when something waits for the GPU, without its remark on that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def no_waiting() -> Iterator[None]:
    """What waits for the device in here raises; afterwards the mode is what it was."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    try:
        set_sync_mode("error")
        yield
    finally:
        set_sync_mode(before)
