"""Modes of torch: what sees operators, and what says where tensors are made.

Those of other threads are pushed and popped without a ``with``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _device as torch_device
from torch.utils._python_dispatch import TorchDispatchMode


def handles_operators(kind: Any) -> bool:
    """Whether tensors of a class handle operators themselves.

    Where ``.data`` is taken, torch hands a mode the classes of others as well.
    """
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """A mode that sees operators and has nothing to do with torch's compiler.

    It is asked about higher-order operators, too (they are no ``OpOverload``); torch refuses them
    under a mode that does not say so.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__torch_dispatch__" in cls.__dict__:
            leave_alone(cls.__dict__["__torch_dispatch__"])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own way imports the compiler at the first operator, which takes seconds
        return False


def leave_alone(function: Any) -> None:
    """Let torch.compile leave a function alone, with all that it calls.

    Where a compiled function breaks its graph, whatever Python runs in between is compiled as well:
    what a mode does with an operator would be, and anew for each tensor.
    """
    compiler = torch._C._dynamo.eval_frame
    skip = compiler._FrameAction.SKIP
    compiler.set_code_exec_strategy(function.__code__, compiler._FrameExecStrategy(skip, skip))


class ObservingMode(DispatchMode):
    """A mode that looks on: torch.compile compiles as it would have done without it.

    ``is_infra_mode`` and ``ignore_compile_internals`` are names of torch 2.9 and later; releases
    before it do not ask.
    """

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether the mode belongs to torch's own machinery."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether what the compiler does inside is none of its business."""
        return True


def without_dispatch() -> contextlib.AbstractContextManager[object]:
    """Return a context in which no mode and no subclass sees operators."""
    found: contextlib.AbstractContextManager[object] = torch._C._DisableTorchDispatch()
    return found


def passed_on() -> tuple[type, ...]:
    """Return the tensors that have no memory of their own and know their operators themselves."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


def active_modes() -> Iterable[Any]:
    """Return the modes that are active in this thread, outermost first."""
    stack: Iterable[Any] = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return stack


def active_function_modes() -> Iterable[Any]:
    """Return the modes of functions that are active in this thread, outermost first."""
    stack: Iterable[Any] = torch.overrides._get_current_function_mode_stack()
    return stack


def count_modes() -> int:
    """Return how many modes are active in this thread."""
    return int(torch._C._len_torch_dispatch_stack())


def push_mode(mode: Any) -> None:
    """Make a mode the innermost one of this thread, without the flags of ``__enter__``."""
    torch._C._push_on_torch_dispatch_stack(mode)


def pop_mode() -> None:
    """Take the innermost mode of this thread off."""
    torch._C._pop_torch_dispatch_stack(None)


def mode_at(index: int) -> Any:
    """Return an active mode of this thread; 0 is the outermost."""
    return torch._C._get_dispatch_stack_at(index)


def is_traced() -> bool:
    """Whether torch.fx traces what this thread does, operator by operator.

    Its mode lies below all modes of users, and so below those of a capture.
    """
    keys = getattr(torch._C, "_TorchDispatchModeKey", None)
    return keys is not None and torch._C._get_dispatch_mode(keys.PROXY) is not None


FAKES = "torch._subclasses."
"""The package that makes fake tensors of others."""


def has_fake_tensors() -> bool:
    """Whether operators of this thread make fake tensors, which have shapes and no contents."""
    keys = getattr(torch._C, "_TorchDispatchModeKey", None)
    return keys is not None and torch._C._get_dispatch_mode(keys.FAKE) is not None


def default_device() -> Any:
    """Return where a ``with torch.device(...)`` or a default device puts tensors; None: nowhere."""
    modes = active_function_modes()
    set_by = [mode for mode in modes if isinstance(mode, torch_device.DeviceContext)]
    return set_by[-1].device if set_by else None


def is_device_set() -> bool:
    """Whether tensors are made where a ``with torch.device(...)`` says, or a default device."""
    return default_device() is not None


def makes_tensors(function: Any) -> bool:
    """Whether a function makes tensors where a default device says."""
    return function in torch_device._device_constructors()


def know_functions_that_make_tensors() -> None:
    """Let torch list the functions that a device is set for, before one of them is replaced.

    ``torch.utils._device`` keeps the list for ever.
    """
    torch_device._device_constructors()
