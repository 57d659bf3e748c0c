"""Gives memory that is handed out uninitialized known contents, so that reads of it show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.capture.operators.higher_order import seen_inside
from pytest_cudafork.capture.software.past_operators import not_compiled
from pytest_cudafork.capture.state.tensors import alias, has_memory
from pytest_cudafork.compat.torch_graphs import DispatchMode, OpOverload, schema_of


class Filled(Protocol):
    """Where memory was filled: the first lines of user code, and how often in all."""

    lines: list[str]
    count: int


class _Fill(DispatchMode):
    """Fills what ``torch.empty`` and its kin return."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self._value = value
        self.lines: list[str] = []  # of user code that asked for such memory
        self.count = 0  # of times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            return (seen_inside(func, self) or func)(*args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        name = schema_of(func).name.partition("::")[2]
        leaves_it = name.startswith(("empty", "new_empty")) and isinstance(made, torch.Tensor)
        if leaves_it and has_memory(made) and made.numel() and made.element_size() > 1:
            alias(made).fill_(self._value)
            self.count += 1
            where = line_at_work()
            if where and where not in self.lines and len(self.lines) < 3:
                self.lines.append(where)
        return made


@contextmanager
def filling(value: int) -> Iterator[Filled]:
    """Let memory that is handed out uninitialized hold this value; gives who gets it."""
    with not_compiled(), _Fill(value) as mode:  # the compiler does not like such modes
        yield mode
