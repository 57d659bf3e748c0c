"""Tensors on "cuda" that no function of torch makes, and so no mode sees.

``torch.cuda.FloatTensor(...)`` and ``torch.Generator("cuda")`` are calls of types, and a subclass
of ``Tensor`` makes wrappers without memory. What is on a GPU by the name of its type is here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.stand_ins.capturing.random_numbers import Generator
from pytest_cudafork.capture.stand_ins.capturing.streams import refuse
from pytest_cudafork.capture.stand_ins.tensors.called_back import index_now
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN
from pytest_cudafork.compat.torch_graphs.tensors import WRAPPERS
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.rows import MAKE

__tracebackhide__ = of_refusals

_ON_CUDA = "torch.cuda."


def put_in_place(undo: UndoStack) -> None:
    """Let types make them, until it is undone."""
    undo.set(torch.cuda, MAKE, make)
    undo.set(torch.Tensor, WRAPPERS, staticmethod(_wrapping(getattr(torch.Tensor, WRAPPERS))))
    undo.set(torch, "set_default_tensor_type", _default_type(torch.set_default_tensor_type))


def make(entry: str, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Return what a type of torch makes on a GPU; None: that is not known here."""
    if entry == "torch.Generator":
        return Generator(*args, **(kwargs or {}))
    kind = _type_of(entry)
    return None if kind is None else _tensor(kind, *args, **(kwargs or {}))


def as_type(
    to: Callable[..., Tensor],
    tensor: Tensor,
    dtype: Any = None,
    non_blocking: bool = False,
    **kwargs: Any,
) -> Any:
    """Do what ``Tensor.type`` does: give a name, or change the type and by it the place."""
    index = index_now(tensor)
    if dtype is None:
        name = tensor.type()
        return name if index is None else name.replace("torch.", _ON_CUDA, 1)
    if isinstance(dtype, torch.dtype):
        return to(tensor, dtype=dtype, non_blocking=non_blocking)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    kind = _type_of(name)
    if name.startswith(f"{_ON_CUDA}sparse."):
        refuse(f"Tensor.type({name})", "sparse tensors on a GPU have no stand-in")
    if kind is None and name.startswith(_ON_CUDA):
        raise ValueError(f"invalid type: {name!r}")
    if kind is None:
        return tensor.type(dtype, non_blocking=non_blocking, **kwargs)
    place = torch.device("cuda", index or 0) if name.startswith(_ON_CUDA) else torch.device("cpu")
    return to(tensor, place, kind.dtype, non_blocking=non_blocking)


def _type_of(name: str) -> Any:
    """Return a type of dense tensors by its name; None: it is none."""
    home, _, last = name.rpartition(".")
    found = getattr({"torch": torch, "torch.cuda": torch.cuda}.get(home), last, None)
    is_one = isinstance(found, type) and isinstance(getattr(found, "dtype", None), torch.dtype)
    return found if is_one else None


def _tensor(kind: Any, *args: Any, device: Any = "cuda", **kwargs: Any) -> Tensor:
    place: dict[str, Any] = {"dtype": kind.dtype, "device": device, **kwargs}
    first = args[0] if args else 0
    if isinstance(first, Tensor):
        mine = f"{kind.__module__}.{kind.__name__}"
        if first.type() != mine:
            raise TypeError(f"expected {mine} (got {first.type()})")
        return first.view_as(first)
    if isinstance(first, (int, torch.Size)):
        return torch.empty(*(args or (0,)), **place)
    if not hasattr(first, "__len__"):
        refuse(f"torch.cuda.{kind.__name__}({type(first).__name__})", "it takes sizes or values")
    return torch.tensor(first, **place)


def _wrapping(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what makes a wrapper: one on a GPU is a CPU tensor, as all such tensors are."""

    def make(kind: type, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.get("device")
        place = torch.device("cpu" if device is None else device)
        if place.type != "cuda":
            return original(kind, *args, **kwargs)
        made = original(kind, *args, **{**kwargs, "device": torch.device("cpu")})
        KNOWN.note_gpu(made, place.index or 0)
        return made

    return make


def _default_type(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        if name.startswith(_ON_CUDA):
            refuse(
                f"torch.set_default_tensor_type({name})",
                "its tensors are CPU tensors. torch.set_default_dtype and "
                "torch.set_default_device('cuda') do the same, and are taken",
            )
        original(t)

    return set_default_tensor_type
