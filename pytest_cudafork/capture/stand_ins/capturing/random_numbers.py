"""Random numbers on "cuda" without a GPU: the CPU's default generator draws them, for each device.

So what seeds a GPU's generator, or keeps its state, does that to the CPU's. A generator of its own
is one of the CPU, which says that it is on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_cudafork.observe.base.undo import UndoStack

_HOMES = (torch.cuda, torch.cuda.random)


class Generator(torch.Generator):  # type: ignore[misc]  # torch is not followed
    """Stands for a ``torch.Generator`` on a GPU."""

    def __new__(cls, device: Any = "cuda") -> Generator:
        """Make one of the CPU."""
        made: Generator = super().__new__(cls)
        return made

    def __init__(self, device: Any = "cuda") -> None:
        self._place = torch.device("cuda", torch.device(device).index or 0)

    @property
    def device(self) -> torch.device:
        """The GPU that it draws on."""
        return self._place

    def clone_state(self) -> Generator:
        """Return another one in the same state."""
        made = Generator(self._place)
        made.set_state(self.get_state())
        return made

    def __reduce__(self) -> Any:
        return _again, (self._place, self.get_state())


def _again(place: torch.device, state: torch.Tensor) -> Generator:
    made = Generator(place)
    made.set_state(state)
    return made


def put_in_place(undo: UndoStack) -> None:
    """Let functions of ``torch.cuda`` seed and ask the generator that draws the numbers."""
    for home in _HOMES:
        for name, function in _FUNCTIONS.items():
            if hasattr(home, name):
                undo.set(home, name, function)
    count = max(torch.cuda.device_count(), 1)
    undo.set(torch.cuda, "default_generators", (torch.default_generator,) * count)


def _manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _seed() -> None:
    torch.default_generator.seed()


def _initial_seed() -> int:
    return int(torch.default_generator.initial_seed())


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return torch.default_generator.get_state()


def _get_rng_state_all() -> list[torch.Tensor]:
    return [_get_rng_state() for _ in torch.cuda.default_generators]


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    torch.default_generator.set_state(new_state)


def _set_rng_state_all(new_states: Any) -> None:
    """Set the state to the first one: the devices have it in common."""
    for state in list(new_states)[:1]:
        _set_rng_state(state)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("manual_seed", "manual_seed_all"), _manual_seed),
    **dict.fromkeys(("seed", "seed_all"), _seed),
    "initial_seed": _initial_seed,
    "get_rng_state": _get_rng_state,
    "get_rng_state_all": _get_rng_state_all,
    "set_rng_state": _set_rng_state,
    "set_rng_state_all": _set_rng_state_all,
}
