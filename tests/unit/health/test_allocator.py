"""Tests of what is asked of torch's allocator; a stand-in for ``torch.cuda`` answers."""

from __future__ import annotations

import gc
import sys
from typing import Any, cast

import pytest

from pytest_cudafork.health import allocator, words
from pytest_cudafork.health.allocator import Allocator

LOST = "captures_underway.empty() INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp\nmore"


class _Cuda:
    """``torch.cuda`` as far as the allocator asks it."""

    _initialized = True

    class CUDAGraph:
        """A graph; one whose capture failed has no pool."""

        def __init__(self, number: int | None) -> None:
            self.number = number

        def pool(self) -> tuple[int, int]:
            """Return the pool."""
            if self.number is None:
                raise RuntimeError("no successful capture")
            return (0, self.number)

    class MemPool:
        """A pool that the program made."""

        id = (7, 0)

    def __init__(self) -> None:
        self.bytes = [0, 0]
        self.pools: list[tuple[int, int]] = []
        """Those of segments that nobody uses."""
        self.used: list[tuple[int, int]] = [(0, 0)]
        """Those of segments that somebody uses."""
        self.stuck = False
        self.lost: set[tuple[int, int]] = set()
        """Pools that are not given back."""
        self.capturing = False
        self.emptied = 0
        self.error: Exception | None = None

    def device_count(self) -> int:
        """Two devices."""
        return 2

    def memory_allocated(self, device: int) -> int:
        """Return what is in use."""
        return self.bytes[device]

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """Return the segments."""
        found: list[dict[str, Any]] = []
        for pools, states in ((self.pools, []), (self.used, ["active_allocated"])):
            blocks = [{"state": state} for state in (*states, "inactive")]
            found += [
                {"segment_pool_id": list(pool), "total_size": 20 << 20, "blocks": blocks}
                for pool in pools
            ]
        return found

    def is_current_stream_capturing(self) -> bool:
        """Return what it was told."""
        return self.capturing

    def empty_cache(self) -> None:
        """Fail as after a lost capture, if it was told."""
        self.emptied += 1
        if self.error is not None:
            raise self.error
        if not self.stuck:
            self.pools = [pool for pool in self.pools if pool in self.lost]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    """The stand-in."""
    made: Any = _Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", made)
    return cast("_Cuda", made)


def test_without_torch_or_before_it_uses_cuda_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Untouched:
        _initialized = False

    for module in (None, Untouched()):
        monkeypatch.setitem(sys.modules, "torch.cuda", module)
        asked = Allocator()
        asked.begin()
        answers = (asked.is_capturing(), asked.left_by_capture(suspicious=True), asked.kept())
        assert answers == (False, "", 0)


def test_memory_is_counted_on_all_devices_and_cycles_are_collected(cuda: _Cuda) -> None:
    cuda.bytes = [100, 0]
    asked = Allocator()
    asked.begin()
    assert asked.kept() == 0
    cuda.bytes = [100, 70]
    assert asked.kept() == 70
    cuda.bytes = [40, 0]
    assert asked.kept() == 0

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            cuda.bytes = [100, 0]

    cuda.bytes = [100, 500]
    gc.collect()
    Cycle()
    assert asked.kept() == 0


def test_an_allocator_that_says_so_is_in_the_capture(cuda: _Cuda) -> None:
    cuda.pools.append((0, 3))
    asked = Allocator()
    asked.begin()
    cuda.error = RuntimeError(LOST)
    assert asked.left_by_capture(suspicious=False) == ""
    assert cuda.emptied == 0
    first, _, _ = LOST.partition("\n")
    assert asked.left_by_capture(suspicious=True) == f"{words.LEFT_IN_CAPTURE}: {first}"
    cuda.pools.append((0, 4))
    assert asked.left_by_capture(suspicious=False).endswith(first)


def test_an_allocator_that_gives_nothing_back_is_in_the_capture(cuda: _Cuda) -> None:
    asked = Allocator()
    asked.begin()
    cuda.pools += [(0, 0), (0, 0)]
    assert asked.left_by_capture(suspicious=True) == ""
    assert cuda.pools == []
    cuda.stuck = True
    cuda.pools += [(0, 0), (0, 0), (0, 3)]
    assert asked.left_by_capture(suspicious=True) == (
        f"{words.LEFT_IN_CAPTURE}: torch.cuda.empty_cache() gives nothing back, though nobody "
        "uses 40 MiB of what is cached"
    )
    in_use = _Cuda.MemPool()  # as torch.cuda.use_mem_pool has one: then it gives nothing back
    assert asked.left_by_capture(suspicious=True).startswith(f"{words.KEPT_POOL}: nobody uses its ")
    del in_use


def test_a_pool_that_stays_though_no_graph_has_it_is_a_failed_captures(cuda: _Cuda) -> None:
    cuda.lost = {(0, 2), (0, 3), (0, 4)}
    cuda.pools += [(0, 2)]
    asked = Allocator()
    asked.begin()
    cuda.pools += [(0, 3), (0, 4), (0, 5)]
    told = asked.left_by_capture(suspicious=False)
    assert told == (
        f"{words.KEPT_POOL}: nobody uses its 40 MiB, no graph has it, and "
        "torch.cuda.empty_cache() does not give it back"
    )
    cuda.pools, cuda.used = [(0, 2)], [(0, 0), (0, 6)]
    assert asked.left_by_capture(suspicious=False) == "", "a tensor of a graph that is gone has it"


def test_a_pool_that_a_graph_or_an_object_has_is_not_lost(cuda: _Cuda) -> None:
    cuda.lost = {(0, 5), (7, 0)}
    asked = Allocator()
    asked.begin()
    cuda.pools += [(0, 5), (7, 0)]
    owners = [_Cuda.CUDAGraph(5), _Cuda.CUDAGraph(None), _Cuda.MemPool()]
    for suspicious in (False, True):
        assert asked.left_by_capture(suspicious=suspicious) == ""
    del owners
    assert asked.left_by_capture(suspicious=False) != ""


def test_the_pool_of_a_graph_that_only_a_cycle_holds_is_not_lost(cuda: _Cuda) -> None:
    cuda.lost = {(0, 5)}

    class Graph(_Cuda.CUDAGraph):
        def __init__(self) -> None:
            super().__init__(5)
            self.me = self

        def __del__(self) -> None:
            cuda.lost.clear()

    asked = Allocator()
    asked.begin()
    gc.collect()
    Graph()
    cuda.pools += [(0, 5)]
    assert asked.left_by_capture(suspicious=True) == ""


@pytest.mark.parametrize("error", [None, RuntimeError("out of memory"), AttributeError("none")])
def test_another_error_of_the_allocator_is_no_lost_capture(
    cuda: _Cuda, error: Exception | None
) -> None:
    cuda.error = error
    assert Allocator().left_by_capture(suspicious=True) == ""


def test_what_torch_cannot_say_is_not_known(cuda: _Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    asked = Allocator()
    for name in ("memory_allocated", "memory_snapshot", "is_current_stream_capturing"):
        monkeypatch.setattr(cuda, name, refuse)
    asked.begin()
    assert (asked.is_capturing(), asked.kept()) == (False, 0)
    assert asked.left_by_capture(suspicious=False) == ""
    assert allocator._private_pools(cuda) == set()


def test_a_capture_on_the_current_stream_is_seen(cuda: _Cuda) -> None:
    cuda.capturing = True
    assert Allocator().is_capturing()
