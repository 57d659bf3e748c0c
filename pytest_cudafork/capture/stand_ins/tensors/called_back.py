"""Code that torch calls in the midst of a call: in backward passes, and hooks on what is saved.

Torch takes a mode off while it handles a call, and so it is off in all that the call calls: in
``Function.backward``, hooks of gradients, and layers that a checkpoint runs again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN
from pytest_cudafork.compat.torch_graphs.functions import BACKWARD
from pytest_cudafork.compat.torch_graphs.modes import active_function_modes
from pytest_cudafork.compat.torch_graphs.operators import torch_function_is_on
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_AT_WORK: ContextVar[int | None] = ContextVar("cudafork_gpu_at_work", default=None)


def put_in_place(undo: UndoStack, mode: Any) -> None:
    """Let a mode be active in such code where it works on a GPU, until it is undone."""
    if hasattr(*BACKWARD):
        undo.set(*BACKWARD, _with_mode(mode, getattr(*BACKWARD)))
    undo.set(saved_tensors_hooks, "__init__", _hooked(mode, saved_tensors_hooks.__init__))


def at_work(index: int, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function that works on a GPU."""
    token = _AT_WORK.set(index)
    try:
        return function(*args, **kwargs)
    finally:
        _AT_WORK.reset(token)


def by_subclasses(
    mode: Any, function: Callable[..., Any], types: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Let subclasses that stand in for functions do so, while a mode is active.

    Returns ``NotImplemented`` where none of them does, or one of them has been asked already.
    """
    if not types or not torch_function_is_on():
        return NotImplemented
    for kind in types:
        method = kind.__torch_function__
        if getattr(method, "__func__", None) is not Tensor.__torch_function__.__func__:
            found = active(mode, method, function, types, args, kwargs)
            if found is not NotImplemented:
                return found
    return NotImplemented


def is_at_work() -> bool:
    """Whether a function that works on a GPU is being called."""
    return _AT_WORK.get() is not None


def index_now(tensor: Tensor) -> int | None:
    """Return the GPU that a tensor lies on; None: on none.

    Within a call of torch this is asked of gradients, and of results that are saved before the call
    returns them, too: what is not known to lie on the host lies where the call works.
    """
    index = KNOWN.index_of(tensor)
    if index is None and _AT_WORK.get() is not None and not KNOWN.lies_on_host(tensor):
        return _AT_WORK.get()
    return index


def _with_mode(mode: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's way to run a backward pass, whose first argument are its roots."""

    @functools.wraps(run)
    def backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
        found = (KNOWN.index_of(each) for each in tensors_in(roots))
        index = next((each for each in found if each is not None), _AT_WORK.get())
        if index is None:
            return run(roots, *args, **kwargs)
        return at_work(index, active, (mode, run, roots, *args), kwargs)

    return backward


def _hooked(mode: Any, init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` by which tensors of a GPU are packed while a mode is active.

    They are unpacked in a backward pass.
    """

    @functools.wraps(init)
    def hooked(self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        @functools.wraps(pack_hook, updated=())
        def pack(tensor: Tensor) -> Any:
            if index_now(tensor) is None:
                return pack_hook(tensor)
            return active(mode, pack_hook, tensor)

        init(self, pack, unpack_hook)

    return hooked


def active(mode: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function while a mode is active, which it may be already."""
    if any(each is mode for each in active_function_modes()):
        return function(*args, **kwargs)
    with mode:
        return function(*args, **kwargs)
