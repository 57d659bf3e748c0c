"""Optimizers that take a step within a capture: the graph has the numbers of their groups by value.

A schedule changes such numbers between steps, and no line of eager code ever runs with the others.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch.optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pytest_cudafork.capture.interface.lines import is_foreign

_TORCHS_OWN = os.path.dirname(torch.optim.__file__) + os.sep
"""Where torch's optimizers lie, and what calls the ``step`` of any class of optimizers."""

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


def reads_for_step(frame: FrameType | None) -> bool:
    """Whether the code at work is that of an optimizer's step, and no closure given to it.

    The numbers that it reads from tensors, as how many steps there were, stay in the optimizer.
    """
    met_step = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCHS_OWN):
            return True
        if not is_foreign(file):  # perhaps of a library of optimizers
            if met_step or frame.f_code.co_name != "step":
                return False
            met_step = True
        frame = frame.f_back
    return False


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
