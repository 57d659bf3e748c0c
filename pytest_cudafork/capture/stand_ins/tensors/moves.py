"""What moves tensors between the host and GPUs that are not there: ``to``, ``copy_``, ``numpy``.

Each copies where a GPU would, shares memory where one would, and within a capture refuses what CUDA
refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.host_work import work_of_host
from pytest_cudafork.capture.stand_ins.capturing.streams import current_capture
from pytest_cudafork.capture.stand_ins.tensors import addresses
from pytest_cudafork.capture.stand_ins.tensors.called_back import index_now
from pytest_cudafork.capture.stand_ins.tensors.host_copies import check_copy
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN, storage_of
from pytest_cudafork.capture.stand_ins.tensors.typed_tensors import as_type
from pytest_cudafork.compat import torch_internals
from pytest_cudafork.compat.torch_graphs.modes import count_modes, default_device
from pytest_cudafork.compat.torch_graphs.operators import without_torch_function
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_FROM_HOST = (
    (torch, "from_numpy"),
    (torch, "frombuffer"),
    (torch, "from_dlpack"),
    (torch.utils.dlpack, "from_dlpack"),
)


def put_in_place(undo: UndoStack) -> None:
    """Know of what is made of memory of the host past any mode, until it is undone."""
    for module, name in _FROM_HOST:
        undo.set(module, name, _from_host(getattr(module, name)))


class Moves:
    """What stands for the functions of torch that move tensors.

    ``Tensor.to`` and ``copy_`` are those that torch has when this is made: a capture replaces them.
    """

    def __init__(self) -> None:
        self._plain_to, self._plain_copy = Tensor.to, Tensor.copy_
        self._by_function: dict[Any, Callable[..., Any]] = {
            # A session that shows a GPU has hooked it by now.
            plain(Tensor.pin_memory): lambda tensor, device=None: _pin(tensor),
            plain(Tensor.is_pinned): lambda tensor, device=None: KNOWN.is_pinned(tensor),
            Tensor.cuda: self._cuda,
            Tensor.cpu: lambda tensor, **kwargs: self._to(tensor, torch.device("cpu"), **kwargs),
            Tensor.to: self._to,
            Tensor.type_as: lambda tensor, other: self._to(tensor, device_of(other), other.dtype),
            Tensor.copy_: self._copy,
            Tensor.numpy: functools.partial(_numpy, Tensor.numpy),
            Tensor.__array__: functools.partial(_numpy, Tensor.__array__),
            torch.as_tensor: functools.partial(self._as_tensor, torch.as_tensor),
            torch.asarray: functools.partial(self._as_tensor, torch.asarray),
            torch_internals.parse_to(): _parse_to,
            Tensor.type: functools.partial(as_type, self._to),
            Tensor.__dlpack__: addresses.dlpack,
            Tensor.__dlpack_device__: addresses.dlpack_device,
        }

    def of(self, function: Any) -> Callable[..., Any] | None:
        """Return what stands for a function; None: it moves nothing.

        Within a capture some methods are replaced, and torch says what stands in their place.
        """
        return self._by_function.get(plain(function))

    def _cuda(
        self, tensor: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Tensor:
        if isinstance(device, int):
            device = torch.device("cuda", device)
        place = torch.device("cuda" if device is None else device)
        return self._to(tensor, place, non_blocking=non_blocking, **kwargs)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Copy from one place to another, as a GPU would; else what ``to`` does."""
        name = "device" if "device" in kwargs else "other"
        place = args[0] if args else kwargs.get(name)
        before = after = index_now(tensor)
        if isinstance(place, Tensor):
            after = index_now(place)
        elif isinstance(place, str | int | torch.device):
            device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
            if device.type == "cuda":
                after, device = device.index or 0, torch.device("cpu")
            else:
                after = None
            args, kwargs = ((device, *args[1:]), kwargs) if args else ((), {**kwargs, name: device})
        flags = [each for each in args[1:] if isinstance(each, bool)]  # non_blocking, copy
        if before != after:
            args, kwargs["copy"] = args[: len(args) - len(flags[1:])], True
        result: Tensor
        if (before is None) is not (after is None):
            waits = not kwargs.get("non_blocking", flags[:1] == [True])
            types = (each for each in args[1:] if isinstance(each, torch.dtype))
            dtype = kwargs.get("dtype", next(types, None))
            check_copy("to(device)", tensor, dtype, to_host=after is None, waits=waits)
            result = self._plain_to(tensor, *args, **kwargs)
            if after is None:
                KNOWN.note_hosts(result if waits else pinned(result))
        elif before is None and KNOWN.lies_on_host(tensor):
            result = on_host(self._plain_to, tensor, *args, **kwargs)
        else:
            result = self._plain_to(tensor, *args, **kwargs)
        if after is not None:
            KNOWN.note_gpu(result, after)
        return result

    def _as_tensor(
        self, original: Callable[..., Tensor], data: Any, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return data as a tensor that lies where it is asked for: there it is a copy."""
        asked = kwargs.pop("device", None)
        made: Tensor
        if isinstance(data, Tensor):
            made = original(data, *args, **kwargs)
        else:
            asked = default_device() if asked is None else asked
            made = on_host(original, data, *args, device="cpu", **kwargs)
        return made if asked is None else self._to(made, asked)

    def _copy(self, tensor: Tensor, source: Any, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(source, Tensor):
            before, after = index_now(source), index_now(tensor)
            if (before is None) is not (after is None):
                waits = not (args[0] if args else kwargs.get("non_blocking", False))
                check_copy("copy_", source, tensor, to_host=after is None, waits=waits)
            elif before is None and KNOWN.all_lie_on_host([tensor, source]):
                return on_host(self._plain_copy, tensor, source, *args, **kwargs)
        return self._plain_copy(tensor, source, *args, **kwargs)


def on_host(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the host work: a capture has no part in it."""
    if count_modes():
        with work_of_host():
            result = function(*args, **kwargs)
    else:
        result = function(*args, **kwargs)
    KNOWN.note_hosts(result)
    return result


def pinned(tensor: Tensor) -> Tensor:
    """Return a tensor of the host whose memory is said to be pinned from now on."""
    storage, mode = storage_of(tensor), current_capture()
    if storage is not None:
        KNOWN.note_pinned(storage)
        if mode is not None:  # what is pinned within a capture belongs to the graph
            mode.recorder.memories.of(tensor).keep = storage
    return tensor


def device_of(tensor: Tensor) -> torch.device:
    """Return where a tensor lies: on a GPU that is not there, or where torch says."""
    index = index_now(tensor)
    return tensor.device if index is None else torch.device("cuda", index)


def plain(function: Any) -> Any:
    """Return torch's own function, also where a hook or a capture stands in its place."""
    return getattr(function, "__wrapped__", function)


def _parse_to(*args: Any, **kwargs: Any) -> Any:
    """Read the arguments of ``Module.to``, which moves each of its tensors then."""
    found = torch_internals.parse_to()(*args, **kwargs)
    like = args[0] if args else kwargs.get("tensor")
    return (device_of(like), *found[1:]) if isinstance(like, Tensor) else found


def _from_host(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes tensors of memory of the host, past the mode."""

    @functools.wraps(original)
    def make(data: Any, *args: Any, **kwargs: Any) -> Tensor:
        index = KNOWN.index_of(data) if isinstance(data, Tensor) else None
        made: Tensor
        if index is None:
            made = on_host(original, data, *args, **kwargs)
        else:
            with without_torch_function():
                made = original(data, *args, **kwargs)
            KNOWN.note_gpu(made, index)
        return made

    return make


def _numpy(original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    index = KNOWN.index_of(tensor)
    if index is not None and not kwargs.get("force"):
        raise TypeError(
            f"can't convert cuda:{index} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )
    return original(tensor, *args, **kwargs)


def _pin(tensor: Tensor) -> Tensor:
    """Return what is pinned: a copy, as torch's does, unless the tensor is."""
    if KNOWN.is_pinned(tensor):
        return tensor
    if KNOWN.index_of(tensor) is not None:
        kind = tensor.type().replace("torch.", "torch.cuda.")
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
    KNOWN.note_hosts(tensor)  # a GPU's would be refused
    return pinned(on_host(tensor.clone))
