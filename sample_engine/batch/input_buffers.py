"""All memory that a forward pass reads: made once, at addresses that never change.

So a CUDA graph may be captured over it. ``input_batch`` writes the fields on the CPU and pushes
them to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["InputBuffers", "KeptViews", "PackedFields"]

_ALIGNMENT = 256  # bytes; what device memory is aligned to, so that kernels may rely on it
_MOST_VIEWS = 256

Size = TypeVar("Size")
Views = TypeVar("Views")


class KeptViews(Generic[Size, Views]):
    """The views of buffers that are cut to a batch's size, as they were made for it first.

    Decode steps have few sizes, and a graph has one.
    """

    def __init__(self) -> None:
        self._kept: dict[Size, Views] = {}

    def of(self, size: Size, make: Callable[[], Views]) -> Views:
        """Return those of a size; ``make`` makes them."""
        views = self._kept.get(size)
        if views is None:
            if len(self._kept) == _MOST_VIEWS:
                self._kept.clear()
            views = self._kept[size] = make()
        return views


class PackedFields:
    """Arrays that lie side by side, so that one copy brings them all to the device.

    Each field has a NumPy view, a CPU tensor and a device tensor. On a CPU they are one and the
    same memory; for a GPU the host's part is pinned.
    """

    def __init__(
        self, fields: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device
    ) -> None:
        places: dict[str, tuple[int, torch.dtype, tuple[int, ...]]] = {}
        size = 0
        for name, (dtype, shape) in fields.items():
            places[name] = (size, dtype, shape)
            size += -(-_num_bytes(dtype, shape) // _ALIGNMENT) * _ALIGNMENT
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
        self._device = torch.zeros_like(self._host, device=device) if on_gpu else self._host
        self.host = {name: _view(self._host, *place) for name, place in places.items()}
        self.device = {name: _view(self._device, *place) for name, place in places.items()}
        self.numpy: dict[str, npt.NDArray[Any]] = {
            name: view.numpy() for name, view in self.host.items()
        }

    def push(self) -> None:
        """Start to copy all fields to the device."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * int(dtype.itemsize)


def _view(
    memory: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    return memory[start : start + _num_bytes(dtype, shape)].view(dtype).view(shape)


class InputBuffers:
    """What a step reads, in three parts: not every step changes all of them.

    Whoever writes calls :meth:`wait` before, and :meth:`pushed` after the last push.
    """

    def __init__(
        self, max_num_seqs: int, max_tokens: int, max_blocks: int, device: torch.device
    ) -> None:
        token = (torch.int64, (max_tokens,))
        self.step = PackedFields(
            {
                "input_ids": token,
                "positions": token,
                "slot_mapping": token,
                "sampled_rows": token,
                "fed_tokens": (torch.int64, (max_num_seqs,)),
                "fed_from": (torch.int64, (max_num_seqs,)),
                "query_start_loc": (torch.int32, (max_num_seqs + 1,)),
                "seq_lens": (torch.int32, (max_num_seqs,)),
            },
            device,
        )
        self.sampling = PackedFields(
            {
                "temperature": (torch.float32, (max_tokens,)),
                "top_k": token,
                "top_p": (torch.float32, (max_tokens,)),
                "keys": token,
            },
            device,
        )
        table = (torch.int32, (max_num_seqs, max_blocks))
        self.table = PackedFields({"block_table": table}, device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def wait(self) -> None:
        """Wait until the last copies are done, so that their source may be written."""
        if self._copied is not None:
            self._copied.synchronize()

    def pushed(self) -> None:
        """Note that the copies of a step have been started."""
        if self._copied is not None:
            self._copied.record()
