"""What hands the memory of a GPU to other libraries: refused, as they would get that of the host.

``Tensor.data_ptr()`` answers, since programs compare such addresses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.utils.dlpack
from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.stand_ins.capturing.streams import refuse
from pytest_cudafork.capture.stand_ins.tensors.called_back import index_now
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_CAPSULES = ((torch, "to_dlpack"), (torch.utils.dlpack, "to_dlpack"))
_INSTEAD = (
    "another library would get an address of the host for one of a GPU. To hand a tensor to torch "
    "itself, give the tensor (torch.from_dlpack(tensor)); to another library, a copy on the host "
    "(tensor.cpu())"
)


def put_in_place(undo: UndoStack) -> None:
    """Refuse capsules of tensors on a GPU, until it is undone."""
    for module, name in _CAPSULES:
        if hasattr(module, name):
            undo.set(module, name, _refusing(getattr(module, name)))


def dlpack_device(tensor: Tensor) -> tuple[Any, int]:
    """Return the place of a tensor as the protocol of DLPack has it."""
    index = index_now(tensor)
    if index is None:
        return tensor.__dlpack_device__()  # type: ignore[no-any-return]  # torch is not followed
    return torch.utils.dlpack.DLDeviceType.kDLCUDA, index


def dlpack(tensor: Tensor, **kwargs: Any) -> Any:
    """Return a capsule of a tensor of the host."""
    if index_now(tensor) is not None:
        _refuse("Tensor.__dlpack__()")
    return tensor.__dlpack__(**kwargs)


def array_interface(tensor: Tensor) -> Any:
    """Refuse ``__cuda_array_interface__`` of a tensor on a GPU; another one has none."""
    if index_now(tensor) is not None:
        _refuse("Tensor.__cuda_array_interface__")
    return tensor.__cuda_array_interface__


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to_dlpack(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if index_now(tensor) is not None:
            _refuse("to_dlpack(tensor)")
        return original(tensor, *args, **kwargs)

    return to_dlpack


def _refuse(call: str) -> NoReturn:
    refuse(call, _INSTEAD)
