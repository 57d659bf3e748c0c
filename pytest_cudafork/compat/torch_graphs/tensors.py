"""Tensors of torch and their memory."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

NO_STORAGE = (RuntimeError, ValueError)
"""What a tensor without a storage raises that is asked for it: sparse and fake ones and wrappers;
parameters that a lazy module has not made yet raise a ``ValueError``."""


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies in a tensor that ``torch.func`` has wrapped; another one as it is."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


identity_of: Any = attrgetter("_cdata")
"""``identity_of(x)``: the address of the object of C++ behind a storage or a generator."""


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; -1: those of inference mode do not count."""
    return -1 if tensor.is_inference() else int(tensor._version)


def storage_behind(weak: Any) -> Any:
    """Return the storage that a ``StorageWeakRef`` refers to; None: it is gone."""
    return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


copy_lists: Any = torch._foreach_copy_
"""Copies the tensors of a list to those of another one."""


def untyped(storage: Any) -> Any:
    """Return what lies in a ``TypedStorage``; an untyped storage as it is."""
    return getattr(storage, "_untyped_storage", storage)


def places_of_saved() -> list[Any]:
    """Return what says in saved files where memory lies, and puts it there, for each device.

    Each is ``(priority, tag, put)``; the first one that gives something counts.
    """
    found: list[Any] = torch.serialization._package_registry
    return found


def has_no_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory of its own, though its layout says so.

    Forward derivatives make such that stand for zeros, and so are results of collectives that are
    not waited for yet: asking their storage for an address raises. A parameter that a lazy module
    has not made yet has no shape either.
    """
    if torch.nn.parameter.is_lazy(tensor):
        return True
    try:
        tensor.untyped_storage().data_ptr()
    except NO_STORAGE:
        return True
    return False


def is_freed_by_torch(storage: torch.UntypedStorage) -> bool:
    """Whether torch's allocator owns the memory of a storage; taken for granted if torch is mute.

    ``torch._C._has_Standard_Deleter`` tells it from memory of cupy, other processes or mappings.
    """
    ask = getattr(torch._C, "_has_Standard_Deleter", None)
    return bool(ask(identity_of(storage))) if ask is not None else True


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor with the conjugate bit set."""
    return torch._conj(tensor)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor with the negative bit set."""
    return torch._neg_view(tensor)


WRAPPERS = "_make_wrapper_subclass"
"""Static method of ``Tensor`` by which subclasses make tensors without memory of their own."""
