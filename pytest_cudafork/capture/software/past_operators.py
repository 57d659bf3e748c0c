"""Code of torch that goes past every operator on a CPU, and so past the software graph.

Compiled functions write memory by themselves, ``one_hot`` and ``deepcopy`` read or copy it in C++,
and an assignment ``x[mask] = 3`` makes a tensor of the number before an operator sees it. For the
length of a capture or of a recorded run such code does, in its thread, what can be recorded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.meanwhile import attribute_set
from pytest_cudafork.capture.software.own_thread import replace_here
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals


@contextlib.contextmanager
def not_compiled() -> Iterator[None]:
    """For the length of a ``with`` functions of ``torch.compile`` run uncompiled.

    Where the compiler is not loaded yet there is no such function; one that is made within the
    context runs uncompiled because a dispatch mode is active. Functions of torch that compile what
    they are given (``torch.cond``, ``flex_attention``) insist on the compiler: they are handed
    their function back as it is.
    """
    loaded = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    stance: Any = torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()
    with stance, UndoStack() as undo:
        replace_here(undo, torch, "compile", _compile)
        yield


def _compile(original: Any, model: Any = None, *args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if callable(model) and caller.startswith("torch."):
        return model
    return original(model, *args, **kwargs)


@contextlib.contextmanager
def by_operators() -> Iterator[None]:
    """For the length of a ``with`` ``one_hot`` and copies of tensors are made by operators.

    So they are on a GPU; on a CPU torch looks at values, or copies memory, in C++.
    """
    with UndoStack() as undo:
        replace_here(undo, torch.nn.functional, "one_hot", _one_hot)
        replace_here(undo, Tensor, "__deepcopy__", _deep_copy)
        yield


def _one_hot(original: Any, tensor: Tensor, num_classes: int = -1) -> Any:
    if num_classes <= 0:
        return original(tensor, num_classes)
    zeros = torch.zeros(*tensor.shape, num_classes, dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _deep_copy(original: Any, tensor: Tensor, memo: dict[int, Any]) -> Any:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_leaf
    if not plain or tensor.layout != torch.strided:
        return original(tensor, memo)
    if id(tensor) not in memo:
        made = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, tensor.requires_grad)
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


_CHECKING = ("quantile", "nanquantile")


class UnderWay:
    """What this thread does at the moment that goes past operators.

    Attributes:
        assigns_number: ``x[mask] = 3``, and no tensor is assigned.
        checks: a function of torch that looks at values on a CPU and not on a GPU.

    """

    def __init__(self) -> None:
        self.assigns_number = self.checks = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread, for the length of a ``with``."""
        with UndoStack() as undo:
            replace_here(undo, Tensor, "__setitem__", self._assign)
            for name in _CHECKING:
                for where in (torch, Tensor):
                    replace_here(undo, where, name, self._check)
            yield

    def _assign(self, original: Any, tensor: Tensor, key: Any, value: Any) -> None:
        with attribute_set(self, "assigns_number", not isinstance(value, Tensor)):
            original(tensor, key, value)

    def _check(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with attribute_set(self, "checks", True):
            return original(*args, **kwargs)
