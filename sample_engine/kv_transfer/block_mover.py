"""Blocks of the KV cache as rows of bytes on the CPU, and back.

A row holds a block of all caches, one after the other: keys, then values, of each layer. On a GPU
the blocks are gathered there first, so that one copy to or from pinned memory moves all rows.

Shapes::

    B  blocks of a cache
    n  blocks that are moved together
    W  bytes of a block in all caches
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

__all__ = ["BlockMover"]

_MOST_BYTES = 64 << 20
_MOST_ROWS = 256


class BlockMover:
    """Moves blocks between caches and rows.

    ``caches`` are tensors ``[B, ...]`` of one dtype on one device. ``rows`` are the rows, each a
    writable ``memoryview`` of W bytes; there are so many of them as fit into ``most_bytes``, at
    least one and at most 256.
    """

    def __init__(self, caches: Sequence[Tensor], most_bytes: int = _MOST_BYTES) -> None:
        self._caches = [cache.flatten(1) for cache in caches]
        self._device, dtype = caches[0].device, caches[0].dtype
        assert all(each.dtype == dtype for each in caches), "caches of several dtypes"
        widths = [cache.shape[1] for cache in self._caches]
        self.block_bytes = sum(widths) * dtype.itemsize
        self.num_rows = max(1, min(_MOST_ROWS, most_bytes // self.block_bytes))
        shape = (self.num_rows, sum(widths))
        on_gpu = self._device.type == "cuda"
        self._host = torch.empty(shape, dtype=dtype, pin_memory=on_gpu)
        self._near = torch.empty(shape, dtype=dtype, device=self._device) if on_gpu else self._host
        self._ends = [sum(widths[: index + 1]) for index in range(len(widths))]
        flat = memoryview(self._host.view(torch.uint8).numpy()).cast("B")
        self.rows = [
            flat[index * self.block_bytes : (index + 1) * self.block_bytes]
            for index in range(self.num_rows)
        ]
        self._kernel = _kernel() if on_gpu and len(set(widths)) == 1 else None
        # Made once: what is made for each call and copied to the GPU costs as much as a block does.
        self._host_ids = torch.empty(self.num_rows, dtype=torch.int64, pin_memory=on_gpu)
        self._near_ids = self._host_ids.to(self._device)
        starts = [cache.data_ptr() for cache in self._caches]
        self._starts = torch.tensor(starts, dtype=torch.int64, device=self._device)
        self._copied = torch.cuda.Event() if on_gpu else None

    def gather(self, block_ids: Sequence[int]) -> Sequence[memoryview]:
        """The rows of blocks, at most ``num_rows`` of them. Valid until the next call."""
        with torch.inference_mode():
            ids = self._ids(block_ids)
            near = self._near[: len(block_ids)]
            if self._kernel is not None:
                self._kernel.move_blocks(self._starts, ids, near, to_rows=True)
            else:
                for cache, part in zip(self._caches, self._parts(near), strict=True):
                    part.copy_(cache.index_select(0, ids))
            if near.is_cuda:
                self._host[: len(block_ids)].copy_(near)  # waits until it is there
        return self.rows[: len(block_ids)]

    def scatter(self, block_ids: Sequence[int]) -> None:
        """Write the first rows to blocks, one each, at most ``num_rows`` of them."""
        with torch.inference_mode():
            ids = self._ids(block_ids)
            near = self._near[: len(block_ids)]
            if self._copied is not None:
                near.copy_(self._host[: len(block_ids)], non_blocking=True)
                self._copied.record()
            if self._kernel is not None:
                self._kernel.move_blocks(self._starts, ids, near, to_rows=False)
            else:
                for cache, part in zip(self._caches, self._parts(near), strict=True):
                    cache.index_copy_(0, ids, part)
            if self._copied is not None:
                self._copied.synchronize()  # the rows may be written to as soon as this returns

    def _ids(self, block_ids: Sequence[int]) -> Tensor:
        """The numbers of blocks, on their way to the device. Valid until the next call."""
        count = len(block_ids)
        self._host_ids[:count] = torch.tensor(block_ids, dtype=torch.int64)
        if self._near_ids is self._host_ids:
            return self._host_ids[:count]
        return self._near_ids[:count].copy_(self._host_ids[:count], non_blocking=True)

    def _parts(self, near: Tensor) -> list[Tensor]:
        """The columns of each cache: [n, ...] of the rows."""
        starts = [0, *self._ends[:-1]]
        return [near[:, start:end] for start, end in zip(starts, self._ends, strict=True)]


def _kernel() -> ModuleType | None:
    """The kernel that moves blocks of all caches at once; None without Triton."""
    try:
        from sample_engine.kv_transfer.kernels import move_blocks
    except ImportError:
        return None
    return move_blocks
