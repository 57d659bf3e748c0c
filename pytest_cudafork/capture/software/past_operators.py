"""Code of torch that goes past every operator on a CPU, and so past the software graph.

Compiled functions write memory by themselves, ``one_hot`` and ``deepcopy`` read or copy it in C++,
and an assignment ``x[mask] = 3`` makes a tensor of the number before an operator sees it. For the
length of a capture or of a recorded run such code does, in its thread, what can be recorded.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
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
    original, owner = torch.compile, threading.get_ident()

    @functools.wraps(original)
    def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        mine = threading.get_ident() == owner
        if mine and callable(model) and caller.startswith("torch."):
            return model
        return original(model, *args, **kwargs)

    with stance, UndoStack() as undo:
        undo.set(torch, "compile", compile_)
        yield


@contextlib.contextmanager
def by_operators() -> Iterator[None]:
    """For the length of a ``with`` ``one_hot`` and copies of tensors are made by operators.

    So they are on a GPU; on a CPU torch looks at values, or copies memory, in C++.
    """
    owner, module = threading.get_ident(), torch.nn.functional
    original = module.one_hot

    @functools.wraps(original)
    def one_hot(tensor: Tensor, num_classes: int = -1) -> Any:
        if num_classes <= 0 or threading.get_ident() != owner:
            return original(tensor, num_classes)
        zeros = torch.zeros(*tensor.shape, num_classes, dtype=tensor.dtype, device=tensor.device)
        return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)

    copy_of = Tensor.__deepcopy__

    @functools.wraps(copy_of)
    def deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Any:
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_leaf
        if not plain or tensor.layout != torch.strided or threading.get_ident() != owner:
            return copy_of(tensor, memo)
        if id(tensor) not in memo:
            made = tensor.detach().clone()
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, tensor.requires_grad)
            memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    with UndoStack() as undo:
        undo.set(module, "one_hot", one_hot)
        undo.set(Tensor, "__deepcopy__", deep_copy)
        yield


class Assignments:
    """Tells a number of Python from a tensor in ``x[mask] = value``."""

    def __init__(self) -> None:
        self.number = False  # whether an assignment of a number is under way

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch assignments of this thread, for the length of a ``with``."""
        owner, original = threading.get_ident(), Tensor.__setitem__

        @functools.wraps(original)
        def set_item(tensor: Tensor, key: Any, value: Any) -> None:
            if threading.get_ident() != owner:
                original(tensor, key, value)
                return
            before, self.number = self.number, not isinstance(value, Tensor)
            try:
                original(tensor, key, value)
            finally:
                self.number = before

        with UndoStack() as undo:
            undo.set(Tensor, "__setitem__", set_item)
            yield


_CHECKING = ("quantile", "nanquantile")


class ChecksOfCpu:
    """Tells functions of torch that look at values on a CPU and not on a GPU."""

    def __init__(self) -> None:
        self.within = False  # whether such a function is under way

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch such functions in this thread, for the length of a ``with``."""
        with UndoStack() as undo:
            for name in _CHECKING:
                for where in (torch, Tensor):
                    undo.set(where, name, self._noted(getattr(where, name)))
            yield

    def _noted(self, original: Any) -> Any:
        owner = threading.get_ident()

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != owner:
                return original(*args, **kwargs)
            before, self.within = self.within, True
            try:
                return original(*args, **kwargs)
            finally:
                self.within = before

        return call
