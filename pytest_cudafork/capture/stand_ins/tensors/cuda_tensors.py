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
from pytest_cudafork.capture.operators.traits import makes_by_shape, tensors_in
from pytest_cudafork.capture.software.places import Places
from pytest_cudafork.capture.stand_ins.capturing.streams import current_capture
from pytest_cudafork.capture.stand_ins.tensors import (
    addresses,
    called_back,
    cuda_kernels,
    moves,
    saved_tensors,
)
from pytest_cudafork.capture.stand_ins.tensors.called_back import index_now
from pytest_cudafork.capture.stand_ins.tensors.host_copies import (
    check_assignment,
    check_copies,
    check_in_place,
    is_host_mask,
    refuse_index,
    tell_of_host_copy,
)
from pytest_cudafork.capture.stand_ins.tensors.mixed_places import check_places
from pytest_cudafork.capture.stand_ins.tensors.moves import device_of, on_host, pinned, plain
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN, storage_of
from pytest_cudafork.compat.thread_internals import BOOTSTRAP
from pytest_cudafork.compat.torch_graphs.functions import (
    COMPILER,
    GROUPING,
    OPTIMIZER_CHECKS,
    uncompiled,
)
from pytest_cudafork.compat.torch_graphs.modes import (
    FAKES,
    default_device,
    has_fake_tensors,
    makes_tensors,
)
from pytest_cudafork.compat.torch_graphs.operators import OPERATORS, OpOverload
from pytest_cudafork.compat.torch_graphs.tensors import copy_lists
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


class CudaTensors(Places):
    """Makes them, for the threads that it is active in."""

    def __init__(self) -> None:
        super().__init__()
        self._plain_tolist = Tensor.tolist
        self._asked: dict[Any, Callable[[Tensor], Any]] = {
            Tensor.device.__get__: device_of,
            Tensor.is_cuda.__get__: lambda tensor: index_now(tensor) is not None,
            Tensor.is_cpu.__get__: lambda tensor: index_now(tensor) is None and tensor.is_cpu,
            **dict.fromkeys((Tensor.get_device, torch.get_device), self._get_device),
            Tensor.__cuda_array_interface__.__get__: addresses.array_interface,
        }
        self._moves = moves.Moves()

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
            for name in OPTIMIZER_CHECKS:
                if hasattr(Optimizer, name):
                    undo.set(Optimizer, name, self._unless_here(getattr(Optimizer, name)))
            compiler = after_import(
                COMPILER, lambda module: undo.enter_context(uncompiled()), failed
            )
            undo.callback(compiler)
            moves.put_in_place(undo)
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
        move = self._moves.of(func)
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
        of_host = index is None and KNOWN.all_lie_on_host(tensors)
        if asked is not None:
            device = torch.device(asked)
            index = (device.index or 0) if device.type == "cuda" else None
            of_host = device.type == "cpu" and (of_host or makes_by_shape(_name_of(func)))
            kwargs["device"] = torch.device("cpu") if device.type == "cuda" else device
        elif index is not None and plain(func) in _INDEXING:
            refuse_index(args[1])
            if plain(func) is _INDEXING[0]:
                args = (args[0], self._without_masks(args[1]))
        if index is not None and asked is None:
            if plain(func) is _INDEXING[1]:
                check_assignment(*args)
            elif func is copy_lists:
                check_copies(*args, **kwargs)
            else:
                if not (has_fake_tensors() or _is_of(sys._getframe(1).f_globals, _OURS)):
                    check_places(func, tensors, index)
                check_in_place(func, args)
        if index is not None and KNOWN.on_host:
            _pass_by_value(tensors)
        pins = kwargs.pop("pin_memory", False)
        if of_host:
            result = on_host(func, *args, **kwargs)
        elif index is None:
            result = func(*args, **kwargs)
        else:
            result = called_back.at_work(index, func, args, kwargs)
            if _name_of(func) == _PACKS:
                KNOWN.note_hosts(result[1])  # how many sequences go on at each step
            KNOWN.note_gpu(result, index)
        return pinned(result) if pins else result

    def lies_on_host(self, tensor: Tensor) -> bool | None:
        """Return whether a tensor lies on the host; None: that is not known."""
        return KNOWN.lies_on_host(tensor)

    def note_on_host(self, tensor: Tensor) -> None:
        """Note that a tensor lies on the host."""
        KNOWN.note_hosts(tensor)

    def _get_device(self, tensor: Tensor) -> int:
        index = index_now(tensor)
        return int(tensor.get_device()) if index is None else index

    def _without_masks(self, key: Any) -> Any:
        """Return an index in which places stand for masks of the host, which a graph keeps."""
        mode, parts = current_capture(), key if isinstance(key, tuple) else (key,)
        if mode is None or not any(map(is_host_mask, parts)):
            return key
        found: list[Any] = []
        for each in parts:
            if is_host_mask(each):
                places = on_host(torch.nonzero, each, as_tuple=True)
                for place in places:
                    mode.recorder.memories.of(place).keep = storage_of(place)
                found += places
            else:
                found.append(each)
        return tuple(found)

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
