"""Gives memory that is handed out uninitialized known contents, so that reads of it show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.capture.operators.higher_order import OperatorWatch
from pytest_cudafork.capture.software.past_operators import not_compiled
from pytest_cudafork.capture.state.tensors import alias, has_memory
from pytest_cudafork.compat.torch_graphs import schema_of


class Filled:
    """Where memory was filled: the first lines of user code, and how often in all."""

    def __init__(self, value: int) -> None:
        self._value = value
        self.lines: list[str] = []
        self.count = 0

    def see(self, op: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Fill what ``torch.empty`` and its kin return."""
        name = schema_of(op).name.partition("::")[2]
        leaves_it = name.startswith(("empty", "new_empty")) and isinstance(made, torch.Tensor)
        if leaves_it and has_memory(made) and made.numel() and made.element_size() > 1:
            alias(made).fill_(self._value)
            self.count += 1
            where = line_at_work()
            if where and where not in self.lines and len(self.lines) < 3:
                self.lines.append(where)


@contextmanager
def filling(value: int) -> Iterator[Filled]:
    """Let memory that is handed out uninitialized hold this value; gives who gets it."""
    filled = Filled(value)
    with not_compiled(), OperatorWatch(filled.see):  # the compiler does not like such modes
        yield filled
