"""A stand-in for the GPU side of a capture: a driver, a graph and a stream without a device.

It keeps torch's accounts (is a pool in use, is a stream captured) so that a test sees what is left
behind.
"""

from __future__ import annotations

import contextlib
from typing import Any

from pytest_cudafork.capture.cuda.libcuda import CaptureStatus

STREAM = 7


class FakeDriver:
    """The driver's view of one stream. Every operator that is captured adds a node."""

    def __init__(self) -> None:
        self.state = CaptureStatus.NONE
        self.pools: list[Any] = []
        self.captures = 0
        self.size = 0

    def status(self, stream: int) -> CaptureStatus:
        return self.state if stream == STREAM else CaptureStatus.NONE

    def graph_in_progress(self, stream: int) -> int:
        return 1 if self.state is CaptureStatus.ACTIVE else 0

    def count(self, graph: int) -> int:
        return self.size

    def begin(self, stream: int) -> None:
        assert self.state is CaptureStatus.NONE
        self.state = CaptureStatus.ACTIVE

    def end(self, stream: int) -> None:
        assert self.state is not CaptureStatus.NONE
        self.state = CaptureStatus.NONE

    def knows(self, pointer: int) -> bool:
        return False

    def spoil(self) -> None:
        """What a call does that cannot be captured."""
        if self.state is CaptureStatus.ACTIVE:
            self.state = CaptureStatus.INVALIDATED

    def launch(self) -> None:
        """What a captured kernel does; refused once the capture is broken."""
        if self.state is CaptureStatus.INVALIDATED:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        self.size += 1


class FakeGraph:
    """Keeps accounts as torch does: an end that fails leaves the allocator in the pool."""

    driver: FakeDriver

    def __init__(self, keep_graph: bool = False) -> None:
        self.pool: Any = None

    def capture_begin(self, pool: Any, mode: str) -> None:
        assert pool not in self.driver.pools, "already recording to that pool"
        self.driver.begin(STREAM)
        self.driver.pools.append(pool)
        self.driver.captures += 1
        self.driver.size = 0
        self.pool = pool

    def capture_end(self) -> None:
        broken = self.driver.state is CaptureStatus.INVALIDATED
        self.driver.end(STREAM)
        if broken:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        self.driver.pools.remove(self.pool)

    def reset(self) -> None: ...

    def replay(self) -> None: ...

    def instantiate(self) -> None: ...

    def raw_cuda_graph(self) -> int:
        return 1


class FakeStream:
    """A stream with a handle."""

    cuda_stream = STREAM


def pretend(monkeypatch: Any) -> FakeDriver:
    """Put the stand-ins in torch's place until the end of the test."""
    import torch

    from pytest_cudafork.capture.cuda import attempt, memory

    driver = FakeDriver()
    monkeypatch.setattr(FakeGraph, "driver", driver, raising=False)
    for name, value in {
        "CUDAGraph": FakeGraph,
        "current_stream": FakeStream,
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": lambda: None,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    empty = memory.AllocatorMap([])
    monkeypatch.setattr(attempt, "allocator_map", lambda: empty)
    monkeypatch.setattr(attempt, "_forget_last_error", lambda: None)
    monkeypatch.setattr(attempt, "list_nodes", lambda cuda, graph: [])
    return driver
