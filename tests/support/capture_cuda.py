"""Stand-ins for the GPU side of a capture: a driver, a graph and a stream without a device.

They keep torch's accounts (is a pool in use, is a stream captured) so that a test sees what is left
behind. ``Library`` is libcuda as ctypes loads it, with a graph to be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

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


class Library:
    """Stands in for libcuda: a graph of five nodes, one of which holds a graph of two."""

    GRAPHS: ClassVar = {1: (10, 11, 12, 13, 14), 2: (20, 21)}
    TYPES: ClassVar = {10: 0, 11: 5, 12: 4, 13: 1, 14: 99, 20: 2, 21: 0}
    NAMES: ClassVar = {10: b"_ZN4mine6kernelEPKf", 21: b"twice_kernel"}

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in ("cuGraphDestroy",) and not name.startswith("cuStream"):
            raise AttributeError(name)
        return lambda *_: 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        found = self.GRAPHS[graph.value]
        count._obj.value = len(found)
        for index, node in enumerate(found if nodes is not None else ()):
            nodes[index] = node
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = self.TYPES[node.value]
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node: Any, graph: Any) -> int:
        graph._obj.value = 2
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, params: Any) -> int:
        # The runtime's kernels come as functions, others as kernels.
        setattr(params._obj, "func" if node.value == 10 else "kern", node.value)
        return 0

    def cuFuncGetName(self, name: Any, handle: Any) -> int:
        name._obj.value = self.NAMES[handle.value]
        return 0

    cuKernelGetName = cuFuncGetName

    def cuGraphMemcpyNodeGetParams(self, node: Any, params: Any) -> int:
        params._obj.source.memory_type = 1
        params._obj.source.host = 0x1000
        params._obj.target.memory_type = 2
        params._obj.target.device = 0x2000
        return 0
