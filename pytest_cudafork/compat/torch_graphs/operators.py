"""Operators of torch: what they are made of, and by which kernels they run.

The dispatcher calls a mode with an ``OpOverload``, which bears its schema.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch._ops import OpOverload

__all__ = ["OpOverload"]

schema_of: Any = attrgetter("_schema")
"""``schema_of(op)``: the ``torch.FunctionSchema`` of an ``OpOverload``."""

OPERATORS = OpOverload.__module__
"""The module whose code calls an operator."""

CPU_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""For ``OpOverload.redispatch``: the kernel of an operator for the CPU."""

_KERNEL_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def is_composite(op: Any) -> bool:
    """Whether an operator is made of others (a kernel for ``CompositeImplicitAutograd``)."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(op.has_kernel_for_dispatch_key(key))


def has_python_kernel(name: str, overload: str) -> bool:
    """Whether an operator (``namespace::name``) has a kernel for the CPU that is Python code.

    ``torch.library._impls`` lists those that were registered from Python.
    """
    known = getattr(torch.library, "_impls", ())
    namespace, name = name.split("::", 1)
    spelled = f"{name}.{overload}" if overload else name
    return any(f"{namespace}/{spelled}/{key}" in known for key in _KERNEL_KEYS)


_NAMESPACES_OF_TORCH = ("aten", "c10d", "c10d_functional", "fsdp", "inductor", "prims", "quantized",
                        "rngprims", "streams", "symm_mem")  # fmt: skip


def python_kernels_for_cuda() -> Iterator[tuple[Any, bool]]:
    """Give operators of others with Python code for CUDA, and whether the CPU has no kernel.

    Those with code for the CPU alone are left out.
    """
    for each in list(getattr(torch.library, "_impls", ())):
        namespace, name, key = each.split("/", 2)
        if namespace in _NAMESPACES_OF_TORCH or key not in ("CUDA", *_KERNEL_KEYS[1:]):
            continue
        full = f"{namespace}::{name}"
        packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
        if packet is None or torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
            continue
        alone = not torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, "CPU")
        yield getattr(packet, name.partition(".")[2] or "default"), alone


unregister: Any = methodcaller("_destroy")
"""``unregister(library)``: take back what a ``torch.library.Library`` has registered, now."""


def python_kernel(op: Any) -> Any:
    """Return the Python code of a higher-order operator for plain tensors; None: it has none."""
    kernels: dict[Any, Any] = getattr(op, "py_kernels", {})
    dense = kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return dense or kernels.get(torch._C.DispatchKey.CPU)


MODE_CHECK = "_get_current_dispatch_mode"
"""Modules of some higher-order operators ask by this name whether a mode is active, and insist
that none is."""


def below_autograd() -> contextlib.AbstractContextManager[object]:
    """Return a context in which operators are called past autograd."""
    found: contextlib.AbstractContextManager[object] = torch._C._AutoDispatchBelowAutograd()
    return found


without_torch_function: Any = torch._C.DisableTorchFunction
"""A context in which no ``__torch_function__`` is called."""

torch_function_is_on: Any = torch._C._is_torch_function_enabled
"""Whether that of subclasses is called."""

CUDA_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


ELSEWHERE_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)
"""For ``OpOverload.redispatch``: the kernel for CUDA, and one for any device if there is one."""


def finished_work() -> Any:
    """Return a ``Work`` of ``torch.distributed`` that is done, as operators return it.

    ``torch._C._distributed_c10d.FakeWork`` is torch's own stand-in for one.
    """
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()


def wait_for_collective(result: torch.Tensor) -> None:
    """Wait for the result of a functional collective (``ops._c10d_functional.wait_tensor``)."""
    torch.ops._c10d_functional.wait_tensor(result)
