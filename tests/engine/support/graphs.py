"""The plugin's software graph as the engine's graph execution, for machines without a GPU.

A capture records operations and executes none of them: results hold NaN, or numbers that are far
out of range, until a replay. What a graph must not do (wait for the device, shapes that depend on
data) is refused. Work that was not recorded is not replayed: so a graph that lacks something, or
holds what should have been read anew, gives other results than an eager pass.

:class:`Factory` prepares passes that need no model, for tests of managers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.software.backend import SoftwareBackend, SoftwareCapture
from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.execution import CapturedGraph, GraphExecution
from sample_engine.graphs.manager import CudaGraphManager
from sample_engine.graphs.state import AttentionState, ForwardFn

__all__ = [
    "DESCS",
    "FULL",
    "LARGE",
    "NONE",
    "PIECES",
    "PIECEWISE",
    "SMALL",
    "Factory",
    "Lazy",
    "SoftwareExecution",
    "SoftwareGraph",
    "captured_state",
    "poison",
]

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE
SMALL = BatchExecutionDescriptor(FULL, 2, 2, 1)
LARGE = BatchExecutionDescriptor(FULL, 4, 4, 1)
PIECES = BatchExecutionDescriptor(PIECEWISE, 8)
DESCS = (SMALL, PIECES, LARGE)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with what nobody can take for a result."""
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(torch.iinfo(tensor.dtype).max // 2 + 1)


def captured_state(manager: CudaGraphManager, desc: BatchExecutionDescriptor) -> AttentionState:
    """The state that a FULL graph was captured with; its plans are those of the last replay."""
    return manager._attn_states[desc].captured


class SoftwareGraph:
    """A capture of the plugin, and whether it was let go of."""

    def __init__(self, capture: SoftwareCapture) -> None:
        self._capture = capture
        self.is_reset = False
        # The operations that were recorded.
        self.names = [node.name.removeprefix("aten::") for node in capture.recording.nodes or ()]

    def replay(self) -> None:
        """Execute what was recorded."""
        self._capture.replay()

    def reset(self) -> None:
        """Forget it."""
        self._capture.reset()
        self.is_reset = True


class SoftwareExecution(GraphExecution):
    """Records, and remembers what it was asked for and what the plugin found."""

    def __init__(self) -> None:
        self.graphs: list[SoftwareGraph] = []
        self.findings: list[CaptureFinding] = []
        self.pools: list[Any] = []  # of each capture
        self.num_sessions = 0
        self._backend = SoftwareBackend()
        self._open = False

    def new_pool(self) -> Any:
        """Memory that several captures may share."""
        return self._backend.new_pool()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Captures happen in one."""
        self.num_sessions += 1
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        """Record ``fn``."""
        assert self._open, "a capture outside of a session"
        captured = self._backend.capture(fn, pool=pool)
        graph = SoftwareGraph(captured)
        self.graphs.append(graph)
        self.findings += captured.findings
        self.pools.append(pool)
        return graph

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Lazy:
    """Metadata that is initialized on first use."""

    def __init__(self, lengths: torch.Tensor) -> None:
        self.lengths = lengths
        self.shares: torch.Tensor | None = None


class Factory:
    """Divides tokens by lengths, which it looks at once for each metadata."""

    def __init__(self, lazy: Callable[[torch.Tensor], Lazy] = Lazy) -> None:
        self.tokens = torch.ones(8)
        self.lengths = torch.ones(8)
        self.out = torch.zeros(8)
        self.lazy = lazy
        self.calls: list[tuple[Any, ...]] = []

    def __call__(
        self, desc: BatchExecutionDescriptor, warmup: bool
    ) -> tuple[ForwardFn, AttentionState]:
        """Prepare a pass."""
        size = desc.num_tokens
        self.calls.append(("prepare", desc, warmup))
        self.lengths[:size] = 100.0 + size
        metadata = self.lazy(self.lengths[:size])

        def forward(cg_mode: CUDAGraphMode) -> None:
            self.calls.append(("forward", desc, cg_mode))
            if metadata.shares is None:
                metadata.shares = 1.0 / metadata.lengths
            self.out[:size].copy_(self.tokens[:size] * metadata.shares)

        return forward, AttentionState({"layers.0": metadata}, {"layers.0": self.lengths[:size]})
