"""The memory that recorded work uses: whose it is, and whether it is still there.

Storages are seen through the operators that use them; whose an address is, torch's allocator says.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_cudafork.capture.interface.backend import CaptureFinding, MemoryUse, Region, describe
from pytest_cudafork.compat.torch_graphs.tensors import (
    has_no_storage,
    identity_of,
    is_freed_by_torch,
    storage_behind,
)

_GENERAL_POOL = (0, 0)


@dataclasses.dataclass
class Tracked:
    """One storage that recorded work uses, from its first use on."""

    weak: StorageWeakRef
    pointer: int
    nbytes: int
    device: str  # "cuda:0", "cpu"
    tensor: str  # "float32[4, 8]"
    steps: list[int]  # indexes of the steps that use it
    where: str
    standard: bool  # torch's allocator frees it with the storage
    made: bool  # first seen as a result
    reads: bool = False
    writes: bool = False
    owned: bool = False
    outside: bool = False  # made by the work, and in no pool

    def use(self, node: int) -> MemoryUse:
        """The storage as the checks see it, with the first node that uses it."""
        return MemoryUse(
            self.pointer, self.nbytes, self.reads, self.writes, self.owned, self.tensor, node
        )


class Storages:
    """The storages that recorded work uses, by storage, not by tensor object."""

    def __init__(self) -> None:
        self._tracked: dict[int, Tracked] = {}
        self.accesses: dict[int, tuple[list[Region], list[Region]]] = {}  # step: read, written

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._tracked.values())

    def __len__(self) -> int:
        return len(self._tracked)

    def note(
        self,
        tensor: torch.Tensor,
        step: int,
        where: str,
        *,
        reads: bool = False,
        writes: bool = False,
        made: bool = False,
    ) -> None:
        """Note that a step uses a tensor."""
        if tensor.layout is not torch.strided or has_no_storage(tensor):
            return
        storage = tensor.untyped_storage()
        key = identity_of(storage)
        tracked = self._tracked.get(key)
        if tracked is None:
            pointer = storage.data_ptr()
            if pointer == 0:
                return
            # The weak reference keeps the key from being given to another storage.
            tracked = self._tracked[key] = Tracked(
                StorageWeakRef(storage),
                pointer,
                storage.nbytes(),
                str(tensor.device),
                describe(tensor),
                [],
                where,
                _freed_with_its_storage(storage),
                made,
            )
        tracked.steps.append(step)
        tracked.reads = tracked.reads or reads
        tracked.writes = tracked.writes or writes
        find = functools.partial(storage_behind, tracked.weak)
        region = Region.under(tensor, id(tracked), tracked.pointer, find)
        region.note(self.accesses.setdefault(step, ([], [])), reads=reads, writes=writes)


def _freed_with_its_storage(storage: torch.UntypedStorage) -> bool:
    """Whether torch's allocator owns the memory, and not cupy, another process or a mapping."""
    if storage.device.type != "cuda":
        return False
    return is_freed_by_torch(storage)


class AllocatorMap:
    """Torch's allocator at one moment: which addresses were in use, and in which pool."""

    def __init__(self, segments: Iterable[Mapping[str, Any]]) -> None:
        blocks: list[tuple[int, int, bool, tuple[int, int]]] = []
        for segment in segments:
            pool = segment.get("segment_pool_id", _GENERAL_POOL)
            address = int(segment["address"])
            for block in segment["blocks"]:
                begin, size = int(block.get("address", address)), int(block["size"])
                active = str(block["state"]).startswith("active")
                blocks.append((begin, size, active, (int(pool[0]), int(pool[1]))))
                address = begin + size
        blocks.sort()
        self._blocks = blocks
        self._begins = [block[0] for block in blocks]

    def find(self, pointer: int) -> tuple[bool, tuple[int, int]] | None:
        """Whether an address is in use and the pool it belongs to; None: not torch's."""
        index = bisect.bisect_right(self._begins, pointer) - 1
        if index < 0:
            return None
        begin, size, active, pool = self._blocks[index]
        return (active, pool) if pointer < begin + size else None

    def pool_of(self, pointer: int) -> tuple[int, int] | None:
        """The pool that an address belongs to, in use or not; None: not torch's."""
        found = self.find(pointer)
        return None if found is None else found[1]


def allocator_map() -> AllocatorMap:
    """Ask torch's allocator, which waits for nothing; empty where it keeps no such accounts."""
    try:
        try:
            return AllocatorMap(torch.cuda.memory_snapshot(include_traces=False))
        except TypeError:  # torch 2.10 and earlier
            return AllocatorMap(torch.cuda.memory_snapshot())
    except RuntimeError:  # PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync
        return AllocatorMap([])


def settle(storages: Iterable[Tracked], before: AllocatorMap, after: AllocatorMap) -> None:
    """Say of each storage whether the work made it, and in which kind of memory."""
    for tracked in storages:
        if not tracked.device.startswith("cuda"):
            tracked.owned = tracked.made
            continue
        earlier, later = before.find(tracked.pointer), after.find(tracked.pointer)
        # Memory that was in use before has an owner outside, also where an operator returns it.
        # What is made within C++, as compiled code does, is first seen as an argument.
        tracked.owned = earlier is None or not earlier[0]
        if later is None:
            tracked.owned = tracked.made  # another allocator's
        elif later[1] == _GENERAL_POOL:
            tracked.outside = tracked.owned and tracked.made


def outside_pool(
    storages: Iterable[Tracked], captured: Callable[[int], bool]
) -> list[CaptureFinding]:
    """Findings for memory that the graph uses and that does not belong to it.

    ``captured`` tells whether a step put work into the graph.
    """
    return [
        CaptureFinding(
            "outside-pool",
            f"the graph uses {tracked.tensor} ({tracked.nbytes} bytes at {tracked.pointer:#x}), "
            "which was allocated during the capture, but not in the graph's memory pool",
            where=tracked.where,
            why="the graph does not keep this memory: once the tensor is gone, the allocator gives "
            "it to other tensors, which a replay then overwrites or reads",
            todo="allocate it before the capture and keep it, or allocate it on the stream that is "
            "captured: another stream's allocations do not go to the graph's pool",
        )
        for tracked in storages
        if tracked.outside and any(map(captured, tracked.steps))
    ]


def gone(needed: Iterable[Tracked]) -> list[CaptureFinding]:
    """Return a finding for each storage that is no longer where a graph has it."""
    found = [(tracked, _what_happened(tracked)) for tracked in needed]
    return [_freed(tracked, how) for tracked, how in found if how]


def needed_from_outside(
    storages: Iterable[Tracked],
    captured: Callable[[int], bool],
    copied: Callable[[int], bool],
    pinned: Callable[[int], bool],
) -> list[Tracked]:
    """Pick what has to outlive the graph: device memory it did not make, host memory it copies.

    ``copied`` tells of a host address whether a copy node of the graph uses it, ``pinned`` whether
    it is the driver's. Pinned memory that is made within a capture belongs to the graph, as torch
    2.11 has it; what was pinned before is given to the next tensor that asks for it.
    """
    needed = []
    for tracked in storages:
        if not any(map(captured, tracked.steps)):
            continue
        if tracked.device == "cpu":
            of_graph = tracked.owned and pinned(tracked.pointer)
            if copied(tracked.pointer) and not of_graph:
                needed.append(tracked)
        elif tracked.standard and not tracked.owned:
            needed.append(tracked)
    return needed


def _what_happened(tracked: Tracked) -> str:
    storage = None if tracked.weak.expired() else storage_behind(tracked.weak)
    if storage is None:
        return "has been freed since"
    now = storage.data_ptr()
    if now == tracked.pointer:
        return ""
    return "was resized to nothing" if now == 0 else f"has moved to {now:#x}"


def _freed(tracked: Tracked, how: str) -> CaptureFinding:
    host = tracked.device == "cpu"
    kind = "host memory of a copy" if host else "memory"
    todo = "keep the tensor as long as the graph, or copy into a tensor that lives that long"
    if host:
        todo = "copy from a pinned tensor that lives as long as the graph"
    return CaptureFinding(
        "freed-memory",
        f"the graph holds the address {tracked.pointer:#x} of {tracked.tensor} on {tracked.device} "
        f"({tracked.nbytes} bytes of {kind}), which {how}",
        where=tracked.where,
        why="a graph holds addresses, not tensors: a replay reads or writes what lies there now",
        todo=todo,
    )
