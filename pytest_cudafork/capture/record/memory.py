"""Storages by identity, and the parts of them that tensors cover.

An address is no identity: other memory may have it when the first is freed.
"""

from __future__ import annotations

import ctypes
import math
import weakref
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.backend import describe, extent
from pytest_cudafork.compat.torch_graphs.modes import leave_alone
from pytest_cudafork.compat.torch_graphs.tensors import NO_STORAGE, conjugated, identity_of, negated

_STRIDED = torch.strided


class Part(NamedTuple):
    """What a tensor covers of its storage; offset and strides in elements."""

    offset: int
    shape: Any
    stride: Any
    dtype: Any
    conjugate: bool
    negative: bool

    def view(self, storage: Any, device: Any) -> Tensor:
        """Return the tensor that covers this part of a storage."""
        made = torch.empty(0, dtype=self.dtype, device=device)
        made = made.set_(storage, self.offset, self.shape, self.stride)
        made = conjugated(made) if self.conjugate else made
        return negated(made) if self.negative else made

    def elements(self) -> int:
        """Return how many elements of its storage it covers: an expanded one, each once."""
        pairs = zip(self.shape, self.stride, strict=True)
        count: int = math.prod(size for size, step in pairs if step or not size)
        return min(count, extent(self.shape, self.stride))

    def span(self) -> tuple[int, int]:
        """Return its first byte, and the one after its last."""
        size, first = self.dtype.itemsize, self.offset
        return first * size, (first + extent(self.shape, self.stride)) * size

    def overlaps(self, other: Part) -> bool:
        """Whether two parts of one storage may have a byte in common."""
        (first, end), (start, last) = self.span(), other.span()
        return first < last and start < end


def part_of(tensor: Tensor) -> Part:
    """Return what a tensor covers of its storage."""
    dtype = tensor.dtype
    conjugate = dtype.is_complex and tensor.is_conj()
    shape, stride = tensor.shape, tensor.stride()
    return Part(tensor.storage_offset(), shape, stride, dtype, conjugate, tensor.is_neg())


class _Reference(weakref.ref[Any]):
    """A weak reference to a storage that knows its identity when it is gone."""

    __slots__ = ("key",)
    key: int


class Memory:
    """One storage, held weakly, with the last writes to it.

    Attributes:
        refer: returns the storage; None: it is gone.
        nbytes: its size, the largest that was seen.
        pointer: its address when a graph first used it; 0: none did.
        writes: what wrote it last, one for each part that still shows; () where that is not known.
        version: how often it was seen to be written.
        where: ``file:line`` of the last write, or of the allocation.
        allocated: ``file:line`` of where it was handed out with nothing in it; "": it was not.
        at: the number of the event of the last write.
        replayed: the number of the event of the last replay that read it; 0: none did.
        filled: how many elements were written since it was allocated; -1: not counted (any more).
        owner: the uses of the graph within whose capture it was allocated.
        live: whether a write to it can be run again.
        activation: whether it holds results of heavy operators, or what is computed of them.

    """

    __slots__ = (
        "__weakref__", "activation", "allocated", "at", "device", "dtype", "filled", "live",
        "nbytes", "owner", "pointer", "refer", "replayed", "shape", "version", "where", "writes",
    )  # fmt: skip

    def __init__(self, tensor: Tensor, storage: Any, gone: Callable[[Any], object]) -> None:
        self.refer = _Reference(storage, gone)
        self.refer.key = identity_of(storage)
        self.pointer, self.nbytes = 0, storage.nbytes()
        self.device, self.dtype, self.shape = tensor.device, tensor.dtype, tensor.shape
        self.writes: tuple[Any, ...] = ()
        self.version, self.where, self.at, self.filled = 0, "", 0, -1
        self.allocated, self.replayed = "", 0
        self.owner: Any = None
        self.live = self.activation = False

    def held(self) -> Any:
        """Return the storage with all that it held; None: it is gone, or was made smaller."""
        storage = self.refer()
        if storage is None:
            return None
        size = storage.nbytes()
        if size < self.nbytes:
            return None
        self.nbytes = size
        return storage

    @property
    def text(self) -> str:
        """It as a reader knows it: ``float32[4, 8]``."""
        return describe(self)

    def flat(self, dtype: Any = None) -> Tensor:
        """Return all of it as a row of numbers, of its own type or another; it must be there."""
        made = torch.empty(0, dtype=dtype or self.dtype, device=self.device)
        return made.set_(self.held(), 0, (self.nbytes // made.element_size(),), (1,))

    def bytes(self) -> Tensor:
        """Return all of it as bytes; it must be there."""
        return self.flat(torch.uint8)

    def checksum(self) -> int:
        """Return a number of the contents of memory of the host; it must be there."""
        storage = self.held()
        if not self.nbytes or storage is None:
            return 0
        return zlib.crc32((ctypes.c_char * self.nbytes).from_address(storage.data_ptr()))


class Memories:
    """All storages that were met and are there."""

    def __init__(self) -> None:
        known: dict[int, Memory] = {}
        self.known = known
        self._gone = lambda reference: known.pop(reference.key, None)
        leave_alone(self._gone)  # it runs wherever a tensor dies

    def of(self, tensor: Tensor) -> Memory | None:
        """Return the memory of a tensor; None: it has none that can be followed."""
        found = self.met(tensor)
        return None if found is None else found[0]

    def met(self, tensor: Tensor) -> tuple[Memory, bool] | None:
        """Return the memory of a tensor, and whether it is met for the first time.

        None: it has none that can be followed. This is asked for the results of all operators.
        """
        try:
            storage = tensor.untyped_storage()
        except NO_STORAGE:
            return None
        key = identity_of(storage)
        found = self.known.get(key)
        if found is not None:
            return found, False
        if tensor.layout is not _STRIDED or tensor.is_meta or tensor.is_nested:
            return None
        made = self.known[key] = Memory(tensor, storage, self._gone)
        return made, True

    def get(self, tensor: Tensor) -> Memory | None:
        """Return the memory of a tensor, if it was met before."""
        try:
            return self.known.get(identity_of(tensor.untyped_storage()))
        except NO_STORAGE:
            return None
