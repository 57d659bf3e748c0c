"""Weak references to tensors, which ``torch.utils.swap_tensors`` refuses to swap otherwise.

Modules call it where weights change their type or are replaced. It exchanges what two objects are,
and refuses that where somebody refers to one weakly: ours let go for as long as it takes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_cudafork.observe.base.hooking import hook
from pytest_cudafork.observe.base.undo import UndoStack

if TYPE_CHECKING:
    from torch import Tensor


class WeakTensor:
    """Refers to a tensor and does not keep it alive: a call returns it, None once it is gone."""

    __slots__ = ("__weakref__", "_reference")

    def __init__(self, tensor: Tensor) -> None:
        self._reference: _Reference | None = None
        self.refer_to(tensor)

    def refer_to(self, tensor: Tensor) -> None:
        """Refer to this tensor from now on."""
        self._reference = _Reference(tensor)
        self._reference.holder = weakref.ref(self)

    def let_go(self) -> None:
        """Refer to none."""
        self._reference = None

    def __call__(self) -> Tensor | None:
        """Return the tensor."""
        return None if self._reference is None else self._reference()


class _Reference(weakref.ref["Tensor"]):
    """Knows who holds it."""

    __slots__ = ("holder",)
    holder: weakref.ref[WeakTensor]


@contextlib.contextmanager
def swaps_let_pass() -> Iterator[None]:
    """Let tensors be swapped that :class:`WeakTensor` refers to, for the length of a ``with``."""
    import torch.utils

    with UndoStack() as undo:
        hook(undo, torch.utils, "swap_tensors", _around)
        yield


def _around(
    proceed: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    caller: FrameType | None,
) -> Any:
    held = [(tensor, holders_of(tensor)) for tensor in (*args, *kwargs.values())]
    for _, holders in held:
        for each in holders:
            each.let_go()
    try:
        return proceed(*args, **kwargs)
    finally:
        for tensor, holders in held:
            for each in holders:
                each.refer_to(tensor)


def holders_of(tensor: Any) -> list[WeakTensor]:
    """Return those that refer to a tensor."""
    ours = [each for each in weakref.getweakrefs(tensor) if isinstance(each, _Reference)]
    found = [each.holder() for each in ours]
    return [each for each in found if each is not None]
