"""Owns how one recorded operator runs in a replay: the call, and where its results go.

It does not know in which order, nor how a place finds its tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_cudafork.capture.software.tape import Place, UnlikeCaptureError

__all__ = ["Wrapped", "resolve", "step_of"]


class Wrapped(NamedTuple):
    """An argument of a kernel that holds a tensor in ``base``."""

    argument: Any
    base: Any

    def made(self) -> Any:
        """The argument with the tensor of this replay."""
        new = copy.copy(self.argument)
        new.base = resolve(self.base)
        return new


def resolve(tree: Any) -> Any:
    """The tensors at the places in nested lists."""
    if type(tree) is Place:
        return tree.tensor
    if type(tree) is list:
        return [resolve(each) for each in tree]
    if type(tree) is dict:
        return {name: resolve(each) for name, each in tree.items()}
    if type(tree) is Wrapped:
        return tree.made()
    return tree


def step_of(op: Any, args: list[Any], kwargs: dict[str, Any], fresh: Any) -> Callable[[], None]:
    """The call of ``op`` in a replay; results are copied to ``fresh``."""
    flat = not kwargs and not any(type(each) is list for each in args)

    def call() -> Any:
        if flat:
            return op(*[each.tensor if type(each) is Place else each for each in args])
        return op(*resolve(args), **{name: resolve(each) for name, each in kwargs.items()})

    if fresh is None:
        return call
    if type(fresh) is Place:
        place: Place = fresh

        def one() -> None:
            _store(call(), place)

        return one

    def several() -> None:
        _store(call(), fresh)

    return _in_grad_mode(several) if torch.is_grad_enabled() else several


def _in_grad_mode(call: Callable[[], None]) -> Callable[[], None]:
    """A call with gradients on, as at the capture: some operators keep more for the backward."""

    def run() -> None:
        with torch.enable_grad():
            call()

    return run


def _store(result: Any, fresh: Any) -> None:
    if type(fresh) is Place:
        if not isinstance(result, Tensor):
            raise UnlikeCaptureError(
                f"gave {type(result).__name__} instead of a tensor of shape {list(fresh.shape)}"
            )
        if result.shape != fresh.shape:
            raise _other_shape(result, fresh)
        fresh.tensor.copy_(result)
    elif type(fresh) is list:
        if not isinstance(result, (list, tuple)) or len(result) != len(fresh):
            raise UnlikeCaptureError(f"gave other results than the {len(fresh)} of the capture")
        for each, place in zip(result, fresh, strict=True):
            _store(each, place)


def _other_shape(result: Tensor, place: Place) -> RuntimeError:
    return RuntimeError(
        f"its result has shape {list(result.shape)}, at the capture it had {list(place.shape)}"
    )
