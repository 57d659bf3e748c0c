"""What torch's allocator of device memory says after a test: memory kept, captures left behind.

A capture of a CUDA graph that fails leaves something behind in most releases of torch. Up to 2.11
the allocator stays in the capture: ``empty_cache`` then gives nothing back any more, with an error
in old releases and without one in newer ones. In later ones, and where a capture was never ended,
its pool of memory stays for ever, though no graph has it.

torch is asked only where it is imported and has initialized CUDA itself. What it cannot say
(another release, a stand-in) is not known, and no answer is made of that.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from pytest_cudafork.compat import torch_internals
from pytest_cudafork.compat.unpatched import gc
from pytest_cudafork.health import words

PoolId = tuple[int, int]
_SHARED_POOL: PoolId = (0, 0)
"""The pool of everything that is allocated outside captures."""
_MIB = 1 << 20


class _Segment(NamedTuple):
    """A piece of device memory that torch has from the driver."""

    pool: PoolId
    size: int
    """Bytes."""
    free: bool
    """Whether no tensor has any of it."""


class Allocator:
    """torch's allocator, before and after one test."""

    def __init__(self) -> None:
        self._kept_before = 0
        self._pools_before: set[PoolId] = set()

    def begin(self) -> None:
        """Take note of what there is before a test."""
        cuda = _cuda()
        self._kept_before = 0 if cuda is None else _allocated(cuda) or 0
        self._pools_before = set() if cuda is None else _private_pools(cuda)

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        cuda = _cuda()
        try:
            return cuda is not None and cuda.is_current_stream_capturing() is True
        except Exception:  # a broken context; the driver will say so
            return False

    def left_by_capture(self, *, suspicious: bool) -> str:
        """Return what a failed capture has left behind, in one line, or "".

        The allocator is told to give back what nobody uses, where there is reason to ask: in a
        ``suspicious`` test (it has failed, or the driver has refused a capture), or if the test
        leaves a pool that no graph has.
        """
        cuda = _cuda()
        if cuda is None or not (suspicious or self._lost_pools(cuda)):
            return ""
        gc.collect()  # a graph that only a cycle holds gives its pool back
        try:
            cuda.empty_cache()
        except RuntimeError as error:
            first, _, _ = str(error).strip().partition("\n")
            return f"{words.LEFT_IN_CAPTURE}: {first}" if "captures_underway" in first else ""
        except Exception:  # no such function: a stand-in
            return ""
        return self._not_given_back(cuda)

    def _not_given_back(self, cuda: Any) -> str:
        """Return what there is to be said of memory that nobody uses and that is still here."""
        free = [one for one in _segments(cuda) if one.free]
        shared = sum(one.size for one in free if one.pool == _SHARED_POOL)
        if shared and not _has_pool_objects(cuda):
            return (
                f"{words.LEFT_IN_CAPTURE}: torch.cuda.empty_cache() gives nothing back, though "
                f"nobody uses {_mib(shared)} of what is cached"
            )
        lost = self._lost_pools(cuda)
        kept = sum(one.size for one in free if one.pool in lost)
        if kept:
            return (
                f"{words.KEPT_POOL}: nobody uses its {_mib(kept)}, no graph has it, and "
                "torch.cuda.empty_cache() does not give it back"
            )
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
        left = _private_pools(cuda) - self._pools_before
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


def _segments(cuda: Any) -> list[_Segment]:
    """Return what torch has from the driver; [] where it does not say."""
    try:
        return [
            _Segment(
                tuple(one["segment_pool_id"]),
                int(one["total_size"]),
                all(block["state"] == "inactive" for block in one["blocks"]),
            )
            for one in cuda.memory_snapshot()
        ]
    except Exception:
        return []


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"


def _private_pools(cuda: Any) -> set[PoolId]:
    """Return the pools that hold memory, but the shared one."""
    return {one.pool for one in _segments(cuda)} - {_SHARED_POOL}


def _has_pool_objects(cuda: Any) -> bool:
    """Whether the program has pools of its own; while one is in use nothing is given back."""
    pools = getattr(cuda, "MemPool", None)
    return isinstance(pools, type) and any(issubclass(type(one), pools) for one in gc.get_objects())


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
