"""Which storages recorded work uses: what is its own, what is not, who reads and writes.

Memory from outside is known by its address and held weakly, as a graph holds a raw pointer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_cudafork.capture.interface.backend import MemoryUse, Region, describe
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.software.pool import Block, Pool
from pytest_cudafork.compat.torch_graphs.tensors import identity_of, storage_behind

__tracebackhide__ = of_refusals


class Memory:
    """One storage."""

    __slots__ = (
        "block", "filled", "host", "keep", "nbytes", "node", "owned", "pointer", "reads", "text",
        "value", "weak", "where", "writes",
    )  # fmt: skip

    def __init__(self, storage: Any, tensor: Tensor, *, owned: bool) -> None:
        self.pointer = storage.data_ptr()
        self.nbytes = storage.nbytes()
        self.text = describe(tensor)
        self.weak = StorageWeakRef(storage)  # also keeps the address of the storage its own
        self.owned = owned
        self.block: Block | None = (
            None  # of owned memory, and of what another graph left in the pool
        )
        self.keep: Any = None  # a storage that is held for good
        self.host = False  # holds values that the host knows
        self.filled = True  # False: nothing has written it
        self.value: Tensor | None = None  # what a single number from outside was when first read
        self.reads = self.writes = False
        self.node = -1
        self.where = ""

    def storage(self) -> Any:
        """Its storage for a replay; None where it is freed."""
        if self.block is not None:
            return self.block.storage
        if self.keep is not None:
            return self.keep
        return storage_behind(self.weak)


def region_of(memory: Memory, tensor: Tensor | None) -> Region:
    """The part of a storage that a tensor covers; all of it where no tensor says which."""
    find = functools.partial(storage_behind, memory.weak)  # no reference to the memory itself
    if tensor is not None:
        return Region.under(tensor, id(memory), memory.pointer, find)
    end = memory.pointer + memory.nbytes
    return Region(id(memory), memory.pointer, memory.pointer, end, memory.text, find)


class Memories:
    """All storages that were met, by identity."""

    def __init__(self, pool: Pool | None = None) -> None:
        self._known: dict[int, Memory] = {}
        self._pool = pool

    def of(self, tensor: Tensor) -> Memory:
        """The memory of a tensor; what is met for the first time comes from outside."""
        storage = tensor.untyped_storage()
        found = self._known.get(identity_of(storage))
        if found is None:
            found = self._known[identity_of(storage)] = Memory(storage, tensor, owned=False)
            if self._pool is not None:
                found.block = self._pool.block_at(found.pointer)
        return found

    def get(self, tensor: Tensor) -> Memory | None:
        """The memory of a tensor, if it has one and was met before."""
        if tensor.layout != torch.strided:
            return None
        return self._known.get(identity_of(tensor.untyped_storage()))

    def own(self, tensor: Tensor, block: Block | None = None) -> Memory:
        """Note memory that was allocated within the recorded work."""
        storage = tensor.untyped_storage()
        made = self._known[identity_of(storage)] = Memory(storage, tensor, owned=True)
        made.block = block
        return made

    def all(self) -> list[Memory]:
        """Everything met, in the order of meeting."""
        return list(self._known.values())

    def uses(self) -> tuple[MemoryUse, ...]:
        """What work used."""
        return tuple(
            MemoryUse(m.pointer, m.nbytes, m.reads, m.writes, m.owned, m.text, m.node)
            for m in self._known.values()
            if m.node >= 0 and not m.host
        )
