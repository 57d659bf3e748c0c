"""Tensors on "cuda" where a present face shows GPUs: CPU tensors that say that they lie there.

Which memory does is noted by storage, so views, parameters and what operators make of such tensors
lie there, too. The plugin's own code is told the truth. Operators on tensors of both kinds are not
refused, as a GPU would. Within a capture the host works at once with what lies on the host for
sure, and copies between the two are taken and refused as CUDA does. Not covered: tensors that no
call of the Python API of torch makes (``torch.Tensor([1.0])``, gradients in hooks) say "cpu", and a
capture takes them for tensors of the device; ``torch.load`` to a GPU, generators on one and threads
that ran before are refused by the present face.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.host_work import work_of_host
from pytest_cudafork.capture.interface.seen import watch_in_force
from pytest_cudafork.capture.software.places import Places
from pytest_cudafork.capture.stand_ins.streams import current_capture
from pytest_cudafork.compat.thread_internals import BOOTSTRAP
from pytest_cudafork.compat.torch_graphs import (
    COMPILER,
    GROUPING,
    OPTIMIZER_CHECKS,
    count_modes,
    default_device,
    identity_of,
    makes_tensors,
    uncompiled,
    unwrapped,
)
from pytest_cudafork.observe.base.after_import import Failed, after_import
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.rows import PLACE

__all__ = ["CudaTensors"]

__tracebackhide__ = of_refusals

_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
_FROM_HOST = ("from_numpy", "frombuffer")
_ENOUGH = 4096  # storages noted between two looks for those that are gone


class CudaTensors(Places):
    """Makes them, for the threads that it is active in."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: dict[int, tuple[Any, int]] = {}  # storage: weak reference, index of the GPU
        self._locked: dict[int, Any] = {}  # storages of pinned memory: weak reference
        self._hosts: dict[int, Any] = {}  # storages that lie on the host for sure, likewise
        self._limit = _ENOUGH
        self._plain_to, self._plain_copy = Tensor.to, Tensor.copy_
        self._asked: dict[Any, Callable[[Tensor], Any]] = {
            Tensor.device.__get__: self._device,
            Tensor.is_cuda.__get__: lambda tensor: self.index_of(tensor) is not None,
            Tensor.is_cpu.__get__: lambda tensor: self.index_of(tensor) is None and tensor.is_cpu,
            Tensor.get_device: self._get_device,
        }
        self._moves: dict[Any, Callable[..., Tensor]] = {
            # A session that shows a GPU has hooked it by now.
            _plain(Tensor.pin_memory): lambda tensor, device=None: self._pin(tensor),
            _plain(Tensor.is_pinned): lambda tensor, device=None: self._is_pinned(tensor),
            Tensor.cuda: self._cuda,
            Tensor.cpu: lambda tensor, **kwargs: self._to(tensor, torch.device("cpu"), **kwargs),
            Tensor.to: self._to,
            Tensor.copy_: self._copy,
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
            undo.set(torch.cuda, PLACE, self.index_of)
            for name in _FROM_HOST:
                undo.set(torch, name, self._from_host(getattr(torch, name)))
            for name in OPTIMIZER_CHECKS:
                if hasattr(Optimizer, name):
                    undo.set(Optimizer, name, self._unless_here(getattr(Optimizer, name)))
            compiler = after_import(
                COMPILER, lambda module: undo.enter_context(uncompiled()), failed
            )
            undo.callback(compiler)
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch with CPU tensors."""
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        ask = self._asked.get(func)
        if ask is not None:
            ours = _is_ours(sys._getframe(1).f_globals)
            return func(*args, **kwargs) if ours else ask(args[0])
        # Within a capture some methods are replaced, and torch says what stands in their place.
        move = self._moves.get(_plain(func))
        if move is not None:
            return move(*args, **kwargs)
        asked = kwargs.get("device")
        if asked is None and makes_tensors(func):
            asked = default_device()
        args = tuple(torch.device("cpu") if _on_cuda(each) else each for each in args)
        index = self._index_among(args, kwargs)
        of_host = index is None and self._are_of_host([args, kwargs])
        if asked is not None:
            device = torch.device(asked)
            index = (device.index or 0) if device.type == "cuda" else None
            of_host = of_host and device.type == "cpu"
            kwargs["device"] = torch.device("cpu") if device.type == "cuda" else device
        elif index is not None and self._hosts:
            if func in _INDEXING:
                self._refuse_index(args[1])
            self._pass_by_value([args, kwargs])
        pinned = kwargs.pop("pin_memory", False)
        if of_host:
            result = self._on_host(func, *args, **kwargs)
        else:
            result = func(*args, **kwargs)
            if index is not None:
                self._note(result, index)
        return self._pinned(result) if pinned else result

    def index_of(self, tensor: Tensor) -> int | None:
        """Return the GPU that a tensor lies on; None: on none."""
        storage = _storage(tensor)
        found = None if storage is None else self._noted.get(identity_of(storage))
        return None if found is None else found[1]

    def lies_on_host(self, tensor: Tensor) -> bool | None:
        """Return whether a tensor lies on the host; None: that is not known."""
        storage = _storage(tensor)
        if storage is None:
            return None
        key = identity_of(storage)
        if key in self._noted:
            return False
        return True if _is_alive(self._hosts, key) or _is_alive(self._locked, key) else None

    def _device(self, tensor: Tensor) -> torch.device:
        index = self.index_of(tensor)
        return tensor.device if index is None else torch.device("cuda", index)

    def _get_device(self, tensor: Tensor) -> int:
        index = self.index_of(tensor)
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
        before = after = self.index_of(tensor)
        if isinstance(place, Tensor):
            after = self.index_of(place)
        elif isinstance(place, str | int | torch.device):
            device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
            if device.type == "cuda":
                after, device = device.index or 0, torch.device("cpu")
            else:
                after = None
            args, kwargs = ((device, *args[1:]), kwargs) if args else ((), {**kwargs, name: device})
        if before != after:
            kwargs["copy"] = True
        result: Tensor
        if (before is None) is not (after is None):
            waits = not kwargs.get("non_blocking", any(each is True for each in args[1:]))
            types = (each for each in args[1:] if isinstance(each, torch.dtype))
            dtype = kwargs.get("dtype", next(types, None))
            self._check_move("to(device)", tensor, dtype, to_host=after is None, waits=waits)
            result = self._plain_to(tensor, *args, **kwargs)
            if after is None:
                self._note_hosts(result if waits else self._pinned(result))
        elif before is None and self.lies_on_host(tensor):
            result = self._on_host(self._plain_to, tensor, *args, **kwargs)
        else:
            result = self._plain_to(tensor, *args, **kwargs)
        if after is not None:
            self._note(result, after)
        return result

    def _copy(self, tensor: Tensor, source: Any, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(source, Tensor):
            before, after = self.index_of(source), self.index_of(tensor)
            if (before is None) is not (after is None):
                waits = not (args[0] if args else kwargs.get("non_blocking", False))
                self._check_move("copy_", source, tensor, to_host=after is None, waits=waits)
            elif before is None and self._are_of_host([tensor, source]):
                return self._on_host(self._plain_copy, tensor, source, *args, **kwargs)
        return self._plain_copy(tensor, source, *args, **kwargs)

    def _check_move(
        self,
        call: str,
        source: Tensor,
        target: Tensor | torch.dtype | None,
        *,
        to_host: bool,
        waits: bool,
    ) -> None:
        """Refuse, within a capture, copies between host and device that CUDA refuses.

        It takes those from or to pinned memory in one piece that nobody waits for. ``target`` is
        what is written; or the type of a tensor that the call makes (None: that of the source),
        which on the host is pinned where nobody waits for it.
        """
        mode = current_capture()
        if mode is None:
            watch = watch_in_force()
            if to_host and watch is not None:
                watch.host_copies(source)
            return
        if not source.numel():
            return
        if isinstance(target, Tensor):
            pinned, copied = self._is_pinned(target if to_host else source), target
        else:
            pinned = not waits if to_host else self._is_pinned(source)
            copied = torch.empty_like(source, dtype=target, device="meta")
        if pinned and waits:
            mode.refusals.awaited_copy(call)
        if pinned and not _in_one_piece(source, copied, to_host=to_host):
            mode.refusals.buffered_copy(call)
        if not pinned and to_host:
            mode.refusals.sync(f"{call} of a tensor on the device to the host")
        if not pinned:
            mode.refusals.host_data(f"{call} of a tensor on the host")

    def _on_host(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Let the host work: a capture has no part in it."""
        if count_modes():
            with work_of_host():
                result = function(*args, **kwargs)
        else:
            result = function(*args, **kwargs)
        self._note_hosts(result)
        return result

    def _are_of_host(self, tree: Any) -> bool:
        """Whether all tensors lie on the host for sure; there may be none."""
        return all(self.lies_on_host(each) for each in _tensors(tree))

    def _from_host(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function that makes tensors of memory of the host, past the mode."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Tensor:
            made: Tensor = self._on_host(original, *args, **kwargs)
            return made

        return make

    def _pin(self, tensor: Tensor) -> Tensor:
        """Return what is pinned: a copy, as torch's does, unless the tensor is."""
        if self._is_pinned(tensor):
            return tensor
        return self._pinned(self._on_host(tensor.clone))

    def _is_pinned(self, tensor: Tensor) -> bool:
        return self._is_in(self._locked, tensor)

    @staticmethod
    def _is_in(known: dict[int, Any], tensor: Tensor) -> bool:
        storage = _storage(tensor)
        return storage is not None and _is_alive(known, identity_of(storage))

    def _pinned(self, tensor: Tensor) -> Tensor:
        storage, mode = _storage(tensor), current_capture()
        if storage is not None:
            self._locked[identity_of(storage)] = StorageWeakRef(storage)
            if mode is not None:  # what is pinned within a capture belongs to the graph
                mode.recorder.memories.of(tensor).keep = storage
        return tensor

    def _index_among(self, args: Any, kwargs: dict[str, Any]) -> int | None:
        if not self._noted:
            return None
        found = (self.index_of(each) for each in _tensors([args, kwargs]))
        return next((index for index in found if index is not None), None)

    def _note_hosts(self, result: Any) -> None:
        """Note what lies on the host for sure.

        What follows from tensors of which that is not known may follow from gradients, which say
        that they lie there.
        """
        for tensor in _tensors(result):
            storage = _storage(tensor)
            if storage is not None and identity_of(storage) not in self._noted:
                self._hosts[identity_of(storage)] = StorageWeakRef(storage)
        self._clear()

    def _pass_by_value(self, tree: Any) -> None:
        """Let a capture take single numbers of the host beside tensors of a GPU as they are now."""
        for tensor in _tensors(tree):
            if not tensor.dim() and self._is_in(self._hosts, tensor):
                mode = current_capture()
                if mode is None:
                    return
                if not mode.recorder.memories.of(tensor).owned:
                    mode.note_host(tensor)

    def _refuse_index(self, index: Any) -> None:
        """Refuse places that lie on the host; a capture refuses masks by itself."""
        mode = current_capture()
        if mode is None:
            return
        for each in _tensors(index):
            places = each.dim() and each.dtype not in (torch.bool, torch.uint8)
            if places and self.lies_on_host(each):
                mode.refusals.host_data("an index that lies on the host")

    def _by_place(self, group: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's way to group lists of tensors by place, which knows of GPUs."""

        def grouped(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
            found = {}
            for (device, dtype), (members, indices) in group(lists, with_indices).items():
                places = [self.index_of(each) for each in members[0]]
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
            if all(self.index_of(each) is None for group in groups for each in group["params"]):
                check(optimizer)

        return checked

    def _note(self, result: Any, index: int) -> None:
        for tensor in _tensors(result):
            storage = _storage(tensor)
            if storage is not None:
                self._noted[identity_of(storage)] = (StorageWeakRef(storage), index)
        self._clear()

    def _clear(self) -> None:
        """Forget storages that are gone, once there may be many."""
        if len(self._noted) + len(self._hosts) <= self._limit:
            return
        noted = list(self._noted.items())  # other threads may add
        self._noted = {key: each for key, each in noted if not each[0].expired()}
        self._locked = _alive(self._locked)
        self._hosts = _alive(self._hosts)
        self._limit = 2 * (len(self._noted) + len(self._hosts)) + _ENOUGH


def _in_one_piece(source: Tensor, copied: Tensor, *, to_host: bool) -> bool:
    """Whether torch copies from one to the other without a buffer on the host.

    It does where all that is copied lies on the host in one block, or in both at the same places.
    """
    same_places = source.shape == copied.shape and source.stride() == copied.stride()
    if same_places and source.dtype == copied.dtype:
        return bool(torch.empty_like(source, device="meta").stride() == source.stride())
    whole = copied if to_host else source.expand(copied.shape)
    return bool(whole.is_contiguous())


def _plain(function: Any) -> Any:
    """Return torch's own function, also where a hook or a capture stands in its place."""
    return getattr(function, "__wrapped__", function)


def _is_ours(names: dict[str, Any]) -> bool:
    return str(names.get("__name__", "")).startswith("pytest_cudafork.")


def _on_cuda(value: object) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _is_alive(known: dict[int, Any], key: int) -> bool:
    found = known.get(key)
    return found is not None and not found.expired()


def _alive(known: dict[int, Any]) -> dict[int, Any]:
    return {key: each for key, each in list(known.items()) if not each.expired()}


def _storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, fake, functional tensors
        inner = unwrapped(tensor)
        return None if inner is tensor else _storage(inner)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from _tensors(each)
