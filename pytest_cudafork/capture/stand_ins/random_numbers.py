"""Random numbers on "cuda" without a GPU: the CPU's default generator draws them, for each device.

So what seeds a GPU's generator, or keeps its state, does that to the CPU's.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_cudafork.observe.base.undo import UndoStack

_HOMES = (torch.cuda, torch.cuda.random)


def put_in_place(undo: UndoStack) -> None:
    """Let functions of ``torch.cuda`` seed and ask the generator that draws the numbers."""
    for home in _HOMES:
        for function in _FUNCTIONS:
            if hasattr(home, function.__name__):
                undo.set(home, function.__name__, function)
    count = max(torch.cuda.device_count(), 1)
    undo.set(torch.cuda, "default_generators", (torch.default_generator,) * count)


def manual_seed(seed: int) -> None:
    """Seed it."""
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed it."""
    manual_seed(seed)


def seed() -> None:
    """Seed it with a number of its own choice."""
    torch.default_generator.seed()


def seed_all() -> None:
    """Seed it with a number of its own choice."""
    seed()


def initial_seed() -> int:
    """Return what it was seeded with."""
    return int(torch.default_generator.initial_seed())


def get_rng_state(device: Any = "cuda") -> torch.Tensor:
    """Return its state."""
    return torch.default_generator.get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return its state, once for each device."""
    return [get_rng_state() for _ in torch.cuda.default_generators]


def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    """Set its state."""
    torch.default_generator.set_state(new_state)


def set_rng_state_all(new_states: Any) -> None:
    """Set its state to the first one: the devices have it in common."""
    for state in list(new_states)[:1]:
        set_rng_state(state)


_FUNCTIONS = (
    *(manual_seed, manual_seed_all, seed, seed_all, initial_seed),
    *(get_rng_state, get_rng_state_all, set_rng_state, set_rng_state_all),
)
