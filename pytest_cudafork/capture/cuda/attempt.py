"""One capture of a CUDA graph from its begin to its end, and back to the start where it failed."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_cudafork.capture.cuda.failing_line import (
    Clue,
    LineTracer,
    is_about_capture,
    is_late,
    raising_line,
)
from pytest_cudafork.capture.cuda.libcuda import CaptureStatus, DriverError, LibCuda
from pytest_cudafork.capture.cuda.memory import (
    AllocatorMap,
    Tracked,
    allocator_map,
    needed_from_outside,
    outside_pool,
    settle,
)
from pytest_cudafork.capture.cuda.nodes import RawNode, list_nodes, with_lines
from pytest_cudafork.capture.cuda.progress import Progress
from pytest_cudafork.capture.cuda.steps import StepRecorder, triton_launches
from pytest_cudafork.capture.cuda.syncs import Syncs
from pytest_cudafork.capture.interface.backend import CaptureFinding, Recording
from pytest_cudafork.compat.torch_graphs.devices import empty_host_cache, leave_pool
from pytest_cudafork.errors import CaptureFailedError
from pytest_cudafork.observe.base.garbage import no_collections


@dataclasses.dataclass
class Captured:
    """A capture that succeeded."""

    graph: torch.cuda.CUDAGraph | None
    pool: Any
    recording: Recording
    needed: list[Tracked]  # what it needs and does not own, without keeping it alive
    findings: list[CaptureFinding]


@dataclasses.dataclass
class Failed:
    """A capture that did not."""

    clue: Clue
    error: BaseException | None


class Attempt:
    """Captures on one stream, into one pool."""

    def __init__(
        self,
        cuda: LibCuda,
        stream: torch.cuda.Stream,
        pool: Any,
        error_mode: str,
        generators: tuple[torch.Generator, ...],
    ) -> None:
        self._cuda = cuda
        self._stream = stream
        self._handle = stream.cuda_stream
        self._pool = pool
        self._error_mode = error_mode
        self._generators = generators

    def run(self, fn: Callable[[], Any]) -> Captured | Failed:
        """Capture ``fn``. Its exceptions that are no matter of the capture pass."""
        torch.cuda.synchronize()
        # As torch.cuda.graph does: pools of graphs that are gone keep memory until then, 2 MiB
        # of the GPU's and 49 KB of the host's, which is pinned (torch 2.11).
        torch.cuda.empty_cache()
        empty_host_cache()
        watch = _Watch(self._cuda, self._handle)
        graph = self._new_graph()
        result: Any = None
        error: BaseException | None = None
        with self._capturing(graph):
            try:
                with watch.running():
                    result = fn()
            except BaseException as raised:
                error = raised
            whole = self._cuda.status(self._handle) is CaptureStatus.ACTIVE
            ended = False
            if whole and error is None:
                error = self._end(graph)
                ended = error is None
            if not ended:
                result = None
                self._abandon(graph)
        if ended:
            return self._captured(graph, result, watch)
        del graph  # the error's traceback holds this frame
        if error is not None and not _is_failure(error, whole):
            raise error
        return Failed(self._clue(watch, error, whole), error)

    def _new_graph(self) -> torch.cuda.CUDAGraph:
        try:
            graph = torch.cuda.CUDAGraph(keep_graph=True)
        except TypeError:  # torch 2.7 and earlier let go of the graph
            graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        return graph

    @contextlib.contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        with no_collections(), torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, self._error_mode)
            yield

    def _end(self, graph: torch.cuda.CUDAGraph) -> BaseException | None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                graph.capture_end()
        except RuntimeError as error:
            return error
        return None

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Leave torch, its allocator, its generators and the driver as if nothing had begun.

        ``capture_end`` gives up at the driver's error and leaves the allocator in the pool, so that
        ``empty_cache`` and the next capture fail. It is given an empty capture to end instead: then
        it undoes all that ``capture_begin`` did.
        """
        if self._cuda.status(self._handle) is not CaptureStatus.NONE:
            self._cuda.end(self._handle)
        try:
            self._cuda.begin(self._handle)
            if self._end(graph) is not None:
                device = torch.cuda.current_device()
                leave_pool(device, self._pool)
        except (DriverError, RuntimeError):
            pass  # the context is lost, or torch had put everything back already
        if self._cuda.status(self._handle) is not CaptureStatus.NONE:
            self._cuda.end(self._handle)
        with contextlib.suppress(RuntimeError):  # as above
            graph.reset()
        _forget_last_error()

    def _clue(self, watch: _Watch, error: BaseException | None, whole: bool) -> Clue:
        """Where the capture broke, as far as this run tells."""
        steps, broken = watch.recorder.steps, watch.progress.broken
        unjoined = watch.progress.last_on_another_stream(steps)
        if broken is not None and not broken.before:
            step = steps[broken.step]
            return Clue(step.where, step.name, unjoined=unjoined)
        if broken is None and error is not None and (whole or not is_late(error)):
            # Refused before it harmed the capture, or refused by a call that is no operator.
            name = steps[-1].name if steps and watch.recorder.raised == len(steps) - 1 else ""
            return Clue(raising_line(error) or unjoined, name, unjoined=unjoined)
        if broken is None:
            last, then = (steps[-1].where if steps else ""), raising_line(error)
        else:
            last = steps[broken.step - 1].where if broken.step else ""
            then = steps[broken.step].where
        return Clue("", between=(last, then), unjoined=unjoined)

    def find_line(self, fn: Callable[[], Any]) -> str:
        """Run ``fn`` once more in a capture and ask after each line; "" if it finds nothing."""
        graph = self._new_graph()
        tracer = LineTracer(lambda: self._cuda.status(self._handle) is CaptureStatus.ACTIVE)
        torch.cuda.synchronize()
        with self._capturing(graph):
            try:
                # Whatever it raises this time: the first run's error is the one to show.
                with contextlib.suppress(Exception), tracer.running():
                    fn()
            finally:
                self._abandon(graph)
        return tracer.where

    def _captured(self, graph: torch.cuda.CUDAGraph, result: Any, watch: _Watch) -> Captured:
        storages, progress = watch.recorder.storages, watch.progress
        settle(storages, watch.before, allocator_map())
        raw, why_not = self._nodes(graph)
        nodes = None
        if raw is not None:
            size = max((one.top + 1 for one in raw), default=0)
            nodes = with_lines(raw, progress.lines(watch.recorder.steps, size))
        addresses = {one for node in raw or () for one in (node.source, node.target)}
        needed = needed_from_outside(
            storages, progress.captured, copied=addresses.__contains__, pinned=self._cuda.knows
        )
        index = {one.top: place for place, one in reversed(list(enumerate(raw or ())))}
        uses = tuple(one.use(_first_node(one, progress, index)) for one in storages)
        findings = [
            *outside_pool(storages, progress.captured),
            *watch.syncs.findings(),
            *progress.left_out(watch.recorder.steps),
        ]
        work = watch.recorder.work(progress.captured)
        recording = Recording(result, nodes, uses, why_not, work)
        return Captured(graph, self._pool, recording, needed, findings)

    def _nodes(self, graph: torch.cuda.CUDAGraph) -> tuple[list[RawNode] | None, str]:
        """The nodes, and why they cannot be listed. Makes the graph ready to be replayed."""
        raw = getattr(graph, "raw_cuda_graph", None)
        if raw is None:
            return None, f"torch {torch.__version__} cannot list the nodes of a graph (2.8 can)"
        try:
            return list_nodes(self._cuda, raw()), ""
        except DriverError as error:
            return None, f"the driver does not list the nodes of the graph: {error}"
        finally:
            graph.instantiate()


class _Watch:
    """All that looks on while a function is captured."""

    def __init__(self, cuda: LibCuda, stream: int) -> None:
        self.progress = Progress(cuda, stream)
        self.recorder = StepRecorder(self.progress)
        self.syncs = Syncs()
        self.before: AllocatorMap = allocator_map()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look on meanwhile."""
        with self.syncs.watched(), triton_launches(self.recorder), self.recorder:
            yield


def _first_node(tracked: Tracked, progress: Progress, index: dict[int, int]) -> int:
    """Index of the first listed node of the steps that use a storage; -1 if there is none."""
    firsts = (progress.grown[step].first for step in tracked.steps if progress.captured(step))
    return min((index[first] for first in firsts if first in index), default=-1)


def _is_failure(error: BaseException, whole: bool) -> bool:
    """Whether an error is a matter of the capture, and not of what is captured.

    ``whole`` says that the capture was unharmed when the error was raised.
    """
    if not isinstance(error, Exception):
        return False
    return not whole or (is_about_capture(error) and not isinstance(error, CaptureFailedError))


def _forget_last_error() -> None:
    """Have torch read, and so forget, an error that a failed call left in the CUDA runtime."""
    for _ in range(3):
        try:
            torch.zeros(1, device="cuda").add_(1)
            torch.cuda.synchronize()
            return
        except RuntimeError:
            continue
