"""Tensors on "cuda" where a present face shows GPUs: CPU tensors that say that they lie there.

Which memory does is noted by storage, so views, parameters and what operators make of such tensors
lie there, too. The plugin's own code is told the truth. Common operators refuse tensors of both
kinds, as a GPU does. Within a capture the host works at once with what lies on the host for
sure, and copies between the two are taken and refused as CUDA does. Not covered: tensors that no
call of the Python API of torch makes (``torch.Tensor([1.0])``) say "cpu", and a
capture takes them for tensors of the device; threads that ran before are refused by the present
face.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor
from torch.optim import Optimizer

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.host_work import work_of_host
from pytest_cudafork.capture.operators.traits import makes_by_shape, tensors_in
from pytest_cudafork.capture.software.places import Places
from pytest_cudafork.capture.stand_ins.capturing.streams import current_capture
from pytest_cudafork.capture.stand_ins.tensors import (
    addresses,
    called_back,
    cuda_kernels,
    saved_tensors,
)
from pytest_cudafork.capture.stand_ins.tensors.called_back import index_now
from pytest_cudafork.capture.stand_ins.tensors.host_copies import (
    check_assignment,
    check_copies,
    check_copy,
    check_in_place,
    is_host_mask,
    refuse_index,
    tell_of_host_copy,
)
from pytest_cudafork.capture.stand_ins.tensors.mixed_places import check_places
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN, storage_of
from pytest_cudafork.capture.stand_ins.tensors.typed_tensors import as_type
from pytest_cudafork.compat import torch_internals
from pytest_cudafork.compat.thread_internals import BOOTSTRAP
from pytest_cudafork.compat.torch_graphs import (
    COMPILER,
    FAKES,
    GROUPING,
    OPERATORS,
    OPTIMIZER_CHECKS,
    OpOverload,
    copy_lists,
    count_modes,
    default_device,
    has_fake_tensors,
    makes_tensors,
    uncompiled,
    without_torch_function,
)
from pytest_cudafork.observe.base.after_import import Failed, after_import
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.rows import PLACE

__tracebackhide__ = of_refusals

_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
"""Operators of constructors that no mode sees, as ``torch.LongTensor([1, 2])``."""
_OURS = ("pytest_cudafork.",)
_TOLD_THE_TRUTH = (*_OURS, FAKES)
"""Fakes of such tensors are fakes of CPU tensors: a fake on a GPU ends the process without one."""

_PACKS = "_pack_padded_sequence"
_FROM_HOST = (
    (torch, "from_numpy"),
    (torch, "frombuffer"),
    (torch, "from_dlpack"),
    (torch.utils.dlpack, "from_dlpack"),
)


class CudaTensors(Places):
    """Makes them, for the threads that it is active in."""

    def __init__(self) -> None:
        super().__init__()
        self._plain_to, self._plain_copy = Tensor.to, Tensor.copy_
        self._plain_tolist = Tensor.tolist
        self._asked: dict[Any, Callable[[Tensor], Any]] = {
            Tensor.device.__get__: self._device,
            Tensor.is_cuda.__get__: lambda tensor: index_now(tensor) is not None,
            Tensor.is_cpu.__get__: lambda tensor: index_now(tensor) is None and tensor.is_cpu,
            **dict.fromkeys((Tensor.get_device, torch.get_device), self._get_device),
            Tensor.__cuda_array_interface__.__get__: addresses.array_interface,
        }
        self._moves: dict[Any, Callable[..., Tensor]] = {
            # A session that shows a GPU has hooked it by now.
            _plain(Tensor.pin_memory): lambda tensor, device=None: self._pin(tensor),
            _plain(Tensor.is_pinned): lambda tensor, device=None: KNOWN.is_pinned(tensor),
            Tensor.cuda: self._cuda,
            Tensor.cpu: lambda tensor, **kwargs: self._to(tensor, torch.device("cpu"), **kwargs),
            Tensor.to: self._to,
            Tensor.type_as: lambda tensor, other: self._to(
                tensor, self._device(other), other.dtype
            ),
            Tensor.copy_: self._copy,
            Tensor.numpy: functools.partial(self._numpy, Tensor.numpy),
            Tensor.__array__: functools.partial(self._numpy, Tensor.__array__),
            torch.as_tensor: functools.partial(self._as_tensor, torch.as_tensor),
            torch.asarray: functools.partial(self._as_tensor, torch.asarray),
            torch_internals.parse_to(): self._parse_to,
            Tensor.type: functools.partial(as_type, self._to),
            Tensor.__dlpack__: addresses.dlpack,
            Tensor.__dlpack_device__: addresses.dlpack_device,
        }

    @contextlib.contextmanager
    def in_this_thread_and_new_ones(self, failed: Failed | None = None) -> Iterator[None]:
        """Be active, in threads that are started meanwhile as long as they run.

        ``failed`` hears of it where compiled functions cannot be kept from compiling.
        """
        bootstrap = getattr(*BOOTSTRAP)

        def begin(thread: threading.Thread) -> None:
            with self:
                bootstrap(thread)

        with UndoStack() as undo, self:
            undo.set(*BOOTSTRAP, begin)
            undo.set(*GROUPING, self._by_place(getattr(*GROUPING)))
            undo.set(torch.cuda, PLACE, KNOWN.index_of)
            # Else an RNN lets it put its weights together, in memory that is no GPU's here.
            undo.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
            for module, name in _FROM_HOST:
                undo.set(module, name, self._from_host(getattr(module, name)))
            for name in OPTIMIZER_CHECKS:
                if hasattr(Optimizer, name):
                    undo.set(Optimizer, name, self._unless_here(getattr(Optimizer, name)))
            compiler = after_import(
                COMPILER, lambda module: undo.enter_context(uncompiled()), failed
            )
            undo.callback(compiler)
            saved_tensors.put_in_place(undo)
            called_back.put_in_place(undo, self)
            cuda_kernels.put_in_place(undo, self)
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch with CPU tensors."""
        kwargs = dict(kwargs or {})
        if func is torch.device or (func.__class__ is OpOverload and _is_below(func)):
            return func(*args, **kwargs)
        ask = self._asked.get(func)
        if ask is not None:
            truth = _is_of(sys._getframe(1).f_globals, _TOLD_THE_TRUTH)
            return func(*args, **kwargs) if truth else ask(args[0])
        if func is self._plain_tolist and KNOWN.index_of(args[0]) is not None:
            tell_of_host_copy(args[0])
        # Within a capture some methods are replaced, and torch says what stands in their place.
        move = self._moves.get(_plain(func))
        if move is not None:
            return move(*args, **kwargs)
        done = called_back.by_subclasses(self, func, types, args, kwargs)
        if done is not NotImplemented:
            return done
        asked = kwargs.get("device")
        if asked is None and makes_tensors(func):
            asked = default_device()
        args = tuple(torch.device("cpu") if _on_cuda(each) else each for each in args)
        if func in _LIFTS:
            KNOWN.note_hosts(args)
        tensors = tensors_in([args, kwargs])
        index = _index_among(tensors)
        of_host = index is None and _are_of_host(tensors)
        if asked is not None:
            device = torch.device(asked)
            index = (device.index or 0) if device.type == "cuda" else None
            of_host = device.type == "cpu" and (of_host or makes_by_shape(_name_of(func)))
            kwargs["device"] = torch.device("cpu") if device.type == "cuda" else device
        elif index is not None and _plain(func) in _INDEXING:
            refuse_index(args[1])
            if _plain(func) is _INDEXING[0]:
                args = (args[0], self._without_masks(args[1]))
        if index is not None and asked is None:
            if _plain(func) is _INDEXING[1]:
                check_assignment(*args)
            elif func is copy_lists:
                check_copies(*args, **kwargs)
            else:
                if not (has_fake_tensors() or _is_of(sys._getframe(1).f_globals, _OURS)):
                    check_places(func, tensors, index)
                check_in_place(func, args)
        if index is not None and KNOWN.on_host:
            _pass_by_value(tensors)
        pinned = kwargs.pop("pin_memory", False)
        if of_host:
            result = self._on_host(func, *args, **kwargs)
        elif index is None:
            result = func(*args, **kwargs)
        else:
            result = called_back.at_work(index, func, args, kwargs)
            if _name_of(func) == _PACKS:
                KNOWN.note_hosts(result[1])  # how many sequences go on at each step
            KNOWN.note_gpu(result, index)
        return self._pinned(result) if pinned else result

    def lies_on_host(self, tensor: Tensor) -> bool | None:
        """Return whether a tensor lies on the host; None: that is not known."""
        return KNOWN.lies_on_host(tensor)

    def note_on_host(self, tensor: Tensor) -> None:
        """Note that a tensor lies on the host."""
        KNOWN.note_hosts(tensor)

    def _device(self, tensor: Tensor) -> torch.device:
        index = index_now(tensor)
        return tensor.device if index is None else torch.device("cuda", index)

    def _get_device(self, tensor: Tensor) -> int:
        index = index_now(tensor)
        return int(tensor.get_device()) if index is None else index

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
                KNOWN.note_hosts(result if waits else self._pinned(result))
        elif before is None and KNOWN.lies_on_host(tensor):
            result = self._on_host(self._plain_to, tensor, *args, **kwargs)
        else:
            result = self._plain_to(tensor, *args, **kwargs)
        if after is not None:
            KNOWN.note_gpu(result, after)
        return result

    def _parse_to(self, *args: Any, **kwargs: Any) -> Any:
        """Read the arguments of ``Module.to``, which moves each of its tensors then."""
        found = torch_internals.parse_to()(*args, **kwargs)
        like = args[0] if args else kwargs.get("tensor")
        return (self._device(like), *found[1:]) if isinstance(like, Tensor) else found

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
            made = self._on_host(original, data, *args, device="cpu", **kwargs)
        return made if asked is None else self._to(made, asked)

    def _copy(self, tensor: Tensor, source: Any, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(source, Tensor):
            before, after = index_now(source), index_now(tensor)
            if (before is None) is not (after is None):
                waits = not (args[0] if args else kwargs.get("non_blocking", False))
                check_copy("copy_", source, tensor, to_host=after is None, waits=waits)
            elif before is None and _are_of_host([tensor, source]):
                return self._on_host(self._plain_copy, tensor, source, *args, **kwargs)
        return self._plain_copy(tensor, source, *args, **kwargs)

    def _on_host(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Let the host work: a capture has no part in it."""
        if count_modes():
            with work_of_host():
                result = function(*args, **kwargs)
        else:
            result = function(*args, **kwargs)
        KNOWN.note_hosts(result)
        return result

    def _without_masks(self, key: Any) -> Any:
        """Return an index in which places stand for masks of the host, which a graph keeps."""
        mode, parts = current_capture(), key if isinstance(key, tuple) else (key,)
        if mode is None or not any(map(is_host_mask, parts)):
            return key
        found: list[Any] = []
        for each in parts:
            if is_host_mask(each):
                places = self._on_host(torch.nonzero, each, as_tuple=True)
                for place in places:
                    mode.recorder.memories.of(place).keep = storage_of(place)
                found += places
            else:
                found.append(each)
        return tuple(found)

    def _from_host(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function that makes tensors of memory of the host, past the mode."""

        @functools.wraps(original)
        def make(data: Any, *args: Any, **kwargs: Any) -> Tensor:
            index = KNOWN.index_of(data) if isinstance(data, Tensor) else None
            made: Tensor
            if index is None:
                made = self._on_host(original, data, *args, **kwargs)
            else:
                with without_torch_function():
                    made = original(data, *args, **kwargs)
                KNOWN.note_gpu(made, index)
            return made

        return make

    def _numpy(
        self, original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        index = KNOWN.index_of(tensor)
        if index is not None and not kwargs.get("force"):
            raise TypeError(
                f"can't convert cuda:{index} device type tensor to numpy. Use Tensor.cpu() to copy "
                "the tensor to host memory first."
            )
        return original(tensor, *args, **kwargs)

    def _pin(self, tensor: Tensor) -> Tensor:
        """Return what is pinned: a copy, as torch's does, unless the tensor is."""
        if KNOWN.is_pinned(tensor):
            return tensor
        if KNOWN.index_of(tensor) is not None:
            kind = tensor.type().replace("torch.", "torch.cuda.")
            raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
        KNOWN.note_hosts(tensor)  # a GPU's would be refused
        return self._pinned(self._on_host(tensor.clone))

    def _pinned(self, tensor: Tensor) -> Tensor:
        storage, mode = storage_of(tensor), current_capture()
        if storage is not None:
            KNOWN.note_pinned(storage)
            if mode is not None:  # what is pinned within a capture belongs to the graph
                mode.recorder.memories.of(tensor).keep = storage
        return tensor

    def _by_place(self, group: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's way to group lists of tensors by place, which knows of GPUs."""

        def grouped(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
            found = {}
            for (device, dtype), (members, indices) in group(lists, with_indices).items():
                places = [KNOWN.index_of(each) for each in members[0]]
                for index in dict.fromkeys(places):
                    here = [at for at, each in enumerate(places) if each == index]
                    key = device if index is None else torch.device("cuda", index), dtype
                    mine = [[part[at] for at in here] if part else [] for part in members]
                    found[key] = mine, [indices[at] for at in here] if indices else []
            return found

        return grouped

    def _unless_here(self, check: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return the check of optimizers that asks for GPUs, which those on one need not ask for.

        A capture has a check of its own.
        """

        @functools.wraps(check)
        def checked(optimizer: Any) -> None:
            groups = optimizer.param_groups
            if all(KNOWN.index_of(each) is None for group in groups for each in group["params"]):
                check(optimizer)

        return checked


def _plain(function: Any) -> Any:
    """Return torch's own function, also where a hook or a capture stands in its place."""
    return getattr(function, "__wrapped__", function)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def _is_of(names: dict[str, Any], packages: tuple[str, ...]) -> bool:
    return str(names.get("__name__", "")).startswith(packages)


def _is_below(operator: Any) -> bool:
    """Whether an operator is part of a call of torch: a mode of the plugin saw it there."""
    if operator in _LIFTS or not called_back.is_at_work():
        return False
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == OPERATORS:
        frame = frame.f_back
    return _is_of(frame.f_globals, _OURS)


def _on_cuda(value: object) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _are_of_host(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors lie on the host for sure; there may be none."""
    return all(KNOWN.lies_on_host(each) for each in tensors)


def _index_among(tensors: Iterable[Tensor]) -> int | None:
    for each in tensors:
        index = KNOWN.index_of(each)
        if index is not None:
            return index
    return None


def _pass_by_value(tensors: Iterable[Tensor]) -> None:
    """Let a capture take single numbers of the host beside tensors of a GPU as they are now."""
    for tensor in tensors:
        if KNOWN.is_number_of_host(tensor):
            mode = current_capture()
            if mode is None:
                return
            if not mode.recorder.memories.of(tensor).owned:
                mode.note_host(tensor)
