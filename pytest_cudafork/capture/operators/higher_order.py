"""Operators that are made of functions, ``torch.cond`` and its kind, seen one operator at a time.

Eager code on a GPU runs their Python code, and a branch that is chosen by a value waits for the
value. So does a capture, which refuses the wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.compat.torch_graphs.modes import DispatchMode
from pytest_cudafork.compat.torch_graphs.operators import MODE_CHECK, OpOverload, python_kernel
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals


def seen_inside(op: Any, mode: Any) -> Callable[..., Any] | None:
    """Return what runs such an operator so that a mode sees each operator in it.

    Args:
        op: The operator, which the mode was just asked about.
        mode: The dispatch mode.

    Returns:
        A function of the operator's arguments; None if it has no Python code for plain tensors.

    """
    kernel = python_kernel(op)
    if kernel is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        module = sys.modules.get(kernel.__module__)
        with UndoStack() as undo:
            if hasattr(module, MODE_CHECK):  # some kernels insist on that no mode is active
                undo.set(module, MODE_CHECK, lambda: None)
            with mode:
                return kernel(*args, **kwargs)

    return run


class OperatorWatch(DispatchMode):
    """Runs everything, and hands each operator on: itself, its arguments, keywords and result."""

    def __init__(self, see: Callable[[Any, Any, dict[str, Any], Any], None]) -> None:
        super().__init__()
        self._see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return (seen_inside(func, self) or func)(*args, **kwargs)
        result = func(*args, **kwargs)
        self._see(func, args, kwargs, result)
        return result
