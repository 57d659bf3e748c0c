"""What torch's allocator of device memory says after a test: memory kept, captures left behind.

torch is asked only where it is imported and has initialized CUDA itself. What it cannot say
(another release, a stand-in) is not known, and no answer is made of that.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_cudafork.compat import torch_internals
from pytest_cudafork.compat.unpatched import gc

PoolId = tuple[int, int]
_SHARED_POOL: PoolId = (0, 0)
"""The pool of everything that is allocated outside captures."""


class Allocator:
    """torch's allocator, before and after one test."""

    def __init__(self) -> None:
        self._kept_before = 0
        self._pools_before: set[PoolId] = set()

    def begin(self) -> None:
        """Take note of what there is before a test."""
        cuda = _cuda()
        self._kept_before = 0 if cuda is None else _allocated(cuda) or 0
        self._pools_before = set() if cuda is None else set(_private_pools(cuda))

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        cuda = _cuda()
        try:
            return cuda is not None and cuda.is_current_stream_capturing() is True
        except Exception:  # a broken context; the driver will say so
            return False

    def left_in_capture(self, *, suspicious: bool) -> str:
        """Return what torch says if a failed capture has left its allocator in a capture, else "".

        Then ``empty_cache`` fails, the next captures do, too, and memory goes to the lost capture's
        pool. The allocator is asked by ``empty_cache``, where there is reason to: in a
        ``suspicious`` test (it has failed), or if it leaves a pool that no graph has.
        """
        cuda = _cuda()
        if cuda is None or not (suspicious or self._lost_pools(cuda)):
            return ""
        try:
            cuda.empty_cache()
        except RuntimeError as error:
            first, _, _ = str(error).strip().partition("\n")
            return first if "captures_underway" in first else ""
        except Exception:  # no such function: a stand-in
            return ""
        return ""

    def kept(self) -> int:
        """Return how many bytes more of device memory are in use than before the test."""
        cuda = _cuda()
        after = None if cuda is None else _allocated(cuda)
        if after is None or after <= self._kept_before:
            return 0
        gc.collect()  # what only cycles hold is not kept
        return max(0, (_allocated(cuda) or 0) - self._kept_before)

    def _lost_pools(self, cuda: Any) -> set[PoolId]:
        """Return the pools that the test has left and that no graph or pool object has."""
        left = set(_private_pools(cuda)) - self._pools_before
        return left - _owned_pools(cuda) if left else left


def _cuda() -> Any:
    """Return ``torch.cuda`` if torch has initialized CUDA in this process."""
    cuda = sys.modules.get("torch.cuda")
    return cuda if torch_internals.initialized_flag(cuda) is True else None


def _allocated(cuda: Any) -> int | None:
    """Return the bytes in use on all devices together; None: not known."""
    try:
        return sum(int(cuda.memory_allocated(device)) for device in range(cuda.device_count()))
    except Exception:
        return None


def _private_pools(cuda: Any) -> list[PoolId]:
    """Return the pools that hold memory, but the shared one."""
    try:
        found = {tuple(segment["segment_pool_id"]) for segment in cuda.memory_snapshot()}
    except Exception:
        return []
    return [(first, second) for first, second in found if (first, second) != _SHARED_POOL]


def _owned_pools(cuda: Any) -> set[PoolId]:
    """Return the pools of all graphs that were captured, and of all pool objects."""
    graphs, pools = getattr(cuda, "CUDAGraph", None), getattr(cuda, "MemPool", None)
    owned = set()
    for one in gc.get_objects():
        kind = type(one)
        try:
            if isinstance(graphs, type) and issubclass(kind, graphs):
                owned.add(tuple(one.pool()))
            elif isinstance(pools, type) and issubclass(kind, pools):
                owned.add(tuple(one.id))
        except Exception:  # a graph whose capture failed has none
            continue
    return owned
