"""Tests of what is asked of torch's allocator; a stand-in for ``torch.cuda`` answers."""

from __future__ import annotations

import gc
import sys
from typing import Any, cast

import pytest

from pytest_cudafork.health import allocator
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
        self.pools: list[tuple[int, int]] = [(0, 0)]
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
        return [{"segment_pool_id": list(pool)} for pool in self.pools]

    def is_current_stream_capturing(self) -> bool:
        """Return what it was told."""
        return self.capturing

    def empty_cache(self) -> None:
        """Fail as after a lost capture, if it was told."""
        self.emptied += 1
        if self.error is not None:
            raise self.error


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
        answers = (asked.is_capturing(), asked.left_in_capture(suspicious=True), asked.kept())
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


def test_a_lost_capture_is_found_in_a_failed_test_and_where_a_pool_is_left(cuda: _Cuda) -> None:
    cuda.pools.append((0, 3))
    asked = Allocator()
    asked.begin()
    cuda.error = RuntimeError(LOST)
    assert asked.left_in_capture(suspicious=False) == ""
    assert cuda.emptied == 0
    assert asked.left_in_capture(suspicious=True) == LOST.partition("\n")[0]
    cuda.pools.append((0, 4))
    assert asked.left_in_capture(suspicious=False).startswith("captures_underway")


def test_a_pool_that_a_graph_or_an_object_has_is_not_lost(cuda: _Cuda) -> None:
    cuda.error = RuntimeError(LOST)
    asked = Allocator()
    asked.begin()
    cuda.pools += [(0, 5), (7, 0)]
    owners = [_Cuda.CUDAGraph(5), _Cuda.CUDAGraph(None), _Cuda.MemPool()]
    assert asked.left_in_capture(suspicious=False) == ""
    del owners
    assert asked.left_in_capture(suspicious=False) != ""


@pytest.mark.parametrize("error", [None, RuntimeError("out of memory"), AttributeError("none")])
def test_another_error_of_the_allocator_is_no_lost_capture(
    cuda: _Cuda, error: Exception | None
) -> None:
    cuda.error = error
    assert Allocator().left_in_capture(suspicious=True) == ""


def test_what_torch_cannot_say_is_not_known(cuda: _Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    asked = Allocator()
    for name in ("memory_allocated", "memory_snapshot", "is_current_stream_capturing"):
        monkeypatch.setattr(cuda, name, refuse)
    asked.begin()
    assert (asked.is_capturing(), asked.kept()) == (False, 0)
    assert asked.left_in_capture(suspicious=False) == ""
    assert allocator._private_pools(cuda) == []


def test_a_capture_on_the_current_stream_is_seen(cuda: _Cuda) -> None:
    cuda.capturing = True
    assert Allocator().is_capturing()
