"""The memory of captures: blocks that are lent to tensors, come back and are lent again.

It works as the private pool of CUDA graphs: a block whose last tensor is gone is lent to whatever
asks next, in this capture or a later one on the same pool, although graphs go on using it.
"""

from __future__ import annotations

import bisect
import ctypes
import weakref
from typing import Any

import torch
from torch import Tensor, frombuffer

_UNIT = 512  # bytes; every size is a multiple, as in CUDA's caching allocator
_SMALL = 1 << 20


class Block:
    """Memory that lives as long as a graph, a pool or a tensor holds it."""

    __slots__ = ("__weakref__", "memory", "nbytes", "storage")

    def __init__(self, nbytes: int) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        self.storage = self.memory.untyped_storage()
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        """The address of its first byte."""
        return int(self.storage.data_ptr())


class _Lent(weakref.ref):  # type: ignore[type-arg]  # generic at run time from 3.9 only in part
    """Knows which block a window into memory belongs to, and when the window is gone."""

    __slots__ = ("block",)
    __hash__ = object.__hash__  # a window cannot be hashed

    def __new__(cls, window: Any, back: Any, block: Block) -> _Lent:
        return super().__new__(cls, window, back)

    def __init__(self, window: Any, back: Any, block: Block) -> None:
        super().__init__(window, back)  # type: ignore[call-arg]  # typeshed knows __new__ only
        self.block = block

    def __eq__(self, other: object) -> bool:
        return self is other


class Pool:
    """Blocks that no tensor uses at present, smallest first."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._free: list[Block] = []
        self._returned: list[Block] = []
        self._lent: set[_Lent] = set()
        self._all: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()
        mine = weakref.ref(self)

        def back(lent: _Lent) -> None:
            pool = mine()
            if pool is not None:
                pool._lent.discard(lent)
                pool._returned.append(lent.block)

        self._back: Any = back

    def lend(self, nbytes: int, dtype: Any) -> tuple[Block, Tensor]:
        """A block and a flat tensor over its first ``nbytes``.

        The block returns to the pool when the last tensor on that storage is gone.
        """
        block = self._take(-(-nbytes // _UNIT) * _UNIT)
        window = (ctypes.c_char * nbytes).from_address(block.pointer)
        window.block = block  # type: ignore[attr-defined]  # it lives as long as the tensor

        self._lent.add(_Lent(window, self._back, block))
        return block, frombuffer(window, dtype=dtype)

    def _take(self, nbytes: int) -> Block:
        while self._returned:
            block = self._returned.pop()
            at = bisect.bisect_left(self._sizes, block.nbytes)
            self._sizes.insert(at, block.nbytes)
            self._free.insert(at, block)
        at = bisect.bisect_left(self._sizes, nbytes)
        # Blocks are not split: a large one is not given away for a small tensor.
        if at < len(self._sizes) and self._sizes[at] <= max(2 * nbytes, _SMALL):
            self._sizes.pop(at)
            return self._free.pop(at)
        made = Block(nbytes)
        self._all[made.pointer] = made
        return made

    def block_at(self, pointer: int) -> Block | None:
        """The block of this pool that begins there."""
        return self._all.get(pointer)


def poison(flat: Tensor) -> None:
    """Fill with what no correct program reads: NaN, True, integers out of range of any index."""
    dtype = flat.dtype
    try:
        if dtype.is_complex:
            flat.fill_(complex("nan+nanj"))
        elif dtype.is_floating_point:
            flat.fill_(float("nan"))
        elif dtype == torch.bool:
            flat.fill_(True)
        else:
            flat.fill_(torch.iinfo(dtype).max // 2 + 1)
    except (RuntimeError, TypeError):  # a dtype that cannot be filled
        flat.view(torch.uint8).fill_(0xFF)
