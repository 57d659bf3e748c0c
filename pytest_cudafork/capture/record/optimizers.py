"""Optimizers that take a step within a capture: the graph has the numbers of their groups by value.

A schedule changes such numbers between steps, and no line of eager code ever runs with the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["OptimizerStep", "numbers_of", "steps_told"]

Numbers = dict[str, Any]
"""By the name of an option (``lr``, ``betas``): its number, or its numbers."""


class OptimizerStep(NamedTuple):
    """A step within a capture."""

    optimizer: weakref.ref[Any]
    numbers: list[Numbers]  # of each of its groups
    where: str


def steps_told(tell: Callable[[Any], None]) -> Callable[[], None]:
    """Call *tell* with each optimizer that is about to take a step; returns what ends it."""

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        tell(optimizer)

    end: Callable[[], None] = register_optimizer_step_pre_hook(before).remove
    return end


def numbers_of(optimizer: Any) -> list[Numbers]:
    """Return the numbers of its groups; those that are tensors a graph reads anew each time."""
    return [
        {name: value for name, value in group.items() if name != "params" and _are_numbers(value)}
        for group in optimizer.param_groups
    ]


def _are_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_are_numbers(each) for each in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
