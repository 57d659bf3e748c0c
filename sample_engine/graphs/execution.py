"""The interface of graph execution, and real CUDA graphs behind it.

``LLM(graph_execution=...)`` hands the engine another execution, which records in
software; so the same manager runs on a machine without a GPU.
"""

from __future__ import annotations

import abc
import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch

from sample_engine.device.preflight import no_graphs
from sample_engine.errors import ConfigError, GraphCaptureError

__all__ = [
    "CapturedElsewhere",
    "CapturedGraph",
    "CudaGraphExecution",
    "GraphExecution",
    "execution_for",
]


class CapturedGraph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Start it once more, on the memory that it was captured on."""

    def reset(self) -> None:
        """Let go of it. It cannot be replayed any more; twice does no harm."""


class GraphExecution(abc.ABC):
    """A way to capture work and to replay it."""

    @abc.abstractmethod
    def new_pool(self) -> Any:
        """Memory for the inner results of graphs; several that never run at a time may share it."""

    @abc.abstractmethod
    def session(self) -> contextlib.AbstractContextManager[None]:
        """What surrounds all warm-ups and captures. A capture outside of one is an error."""

    @abc.abstractmethod
    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        """Run ``fn`` once; what it asks of the device is recorded, not executed.

        Whatever is raised passes, and nothing is being captured afterwards.
        """

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all its work."""


class CapturedElsewhere(GraphExecution):
    """For managers that only make passes, and somebody else captures them, as a test does.

    Each attempt of a manager to capture raises :class:`GraphCaptureError`.
    """

    def new_pool(self) -> Any:
        """None: there is nothing to keep."""
        return None

    def session(self) -> contextlib.AbstractContextManager[None]:
        """Refuse."""
        self._refuse()

    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        """Refuse."""
        self._refuse()

    def synchronize(self) -> None:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise GraphCaptureError("The passes of this manager are captured elsewhere.")


def execution_for(device: torch.device) -> GraphExecution:
    """CUDA graphs of a GPU. Raises :class:`ConfigError` for a device that has no graphs."""
    if device.type != "cuda":
        raise ConfigError(no_graphs(str(device)))
    return CudaGraphExecution(device)


class CudaGraphExecution(GraphExecution):
    """``torch.cuda.CUDAGraph`` on a stream of its own. Made in the process that may use CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._in_session = False

    def new_pool(self) -> Any:
        """A memory pool of the caching allocator."""
        return torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Everything runs on the side stream, and no garbage collection happens in between.

        A collection in the middle of a capture might free another graph, which a capture forbids.
        """
        collects = gc.isenabled()
        torch.cuda.synchronize(self.device)
        gc.collect()
        torch.cuda.empty_cache()
        gc.disable()
        self._in_session = True
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._in_session = False
            if collects:
                gc.enable()
            torch.cuda.synchronize(self.device)

    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        """Capture on the side stream. Other threads may go on using the device meanwhile."""
        if not self._in_session:
            raise GraphCaptureError("A CUDA graph is captured outside of session(): open one.")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # What other threads do (pinned memory, their own streams) does not spoil the capture.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            fn()
        except BaseException:
            self._give_up(graph, pool)
            raise
        try:
            graph.capture_end()
        except BaseException:
            self._after_failure(pool)
            raise
        return graph  # type: ignore[no-any-return, unused-ignore]

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def _give_up(self, graph: Any, pool: Any) -> None:
        """End a capture whose function raised. It may have been invalidated by what it did."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "The CUDA Graph is empty"
                graph.capture_end()
            graph.reset()
        except RuntimeError:  # "operation failed due to a previous error during capture"
            self._after_failure(pool)

    def _after_failure(self, pool: Any) -> None:
        """Undo what ``capture_end`` leaves undone when the capture was invalidated.

        The allocator still takes the pool for one of a capture under way, and the random generator
        still counts for a graph: ending the former and capturing one node sets both right.
        """
        index = self.device.index or 0
        with contextlib.suppress(AttributeError, RuntimeError):  # it was done, says torch
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        node = torch.zeros(1, device=self.device)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        node.zero_()
        graph.capture_end()
        graph.reset()
