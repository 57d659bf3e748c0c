"""The GPUs that a session has, held against those that it was promised."""

from __future__ import annotations

import pytest

from pytest_cudafork.counted import count_of
from pytest_cudafork.gpus.inventory import Inventory, take_inventory
from pytest_cudafork.gpus.lending import machine_of
from pytest_cudafork.settings.gpu_requests import GpuChoice


def _inventory(config: pytest.Config) -> Inventory:
    return take_inventory(machine_of(config), GpuChoice())


def gpus_of(config: pytest.Config) -> int:
    """Return how many GPUs CUDA shows to the processes of this session."""
    return len(_inventory(config).gpus)


def shortage(config: pytest.Config, expected: int) -> str:
    """Say why the session does not have the GPUs that it was promised; "" if it has them."""
    inventory = _inventory(config)
    have = len(inventory.gpus)
    if have >= expected:
        return ""
    machine = inventory.machine
    why = machine.why_none if not machine.gpus else f"the machine has {len(machine.gpus)}"
    if inventory.visible_text is not None:
        why += f", CUDA_VISIBLE_DEVICES={inventory.visible_text}"
    return f"{count_of(expected, 'GPU')} expected, and this session has {have}: {why}"
