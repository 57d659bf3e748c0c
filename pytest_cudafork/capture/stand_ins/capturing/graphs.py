"""``torch.cuda.CUDAGraph`` and ``torch.cuda.graph`` on the software graph.

They have the methods and the errors of torch's own, so that a manager that was written for a GPU
runs as it is. What only the driver could answer is refused by name.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.software.backend import OpenCapture, SoftwareBackend, SoftwareCapture
from pytest_cudafork.capture.software.capture_mode import CaptureMode
from pytest_cudafork.capture.software.pool import Pool
from pytest_cudafork.capture.stand_ins.capturing.random_numbers import Generator
from pytest_cudafork.capture.stand_ins.capturing.streams import (
    Stream,
    current_capture,
    refuse,
    stream,
)
from pytest_cudafork.capture.story.findings import finding_lines
from pytest_cudafork.capture.story.remarks import remark
from pytest_cudafork.compat.torch_graphs.modes import active_modes
from pytest_cudafork.compat.torch_graphs.tensors import identity_of
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError

__tracebackhide__ = of_refusals

_MODES = ("global", "thread_local", "relaxed")
_ONCE = (
    "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new "
    "instance."
)


def graph_pool_handle() -> Pool:
    """Return memory that several captures may share, as ``torch.cuda.graph_pool_handle``."""
    return Pool()


class MemPool:
    """Stands for ``torch.cuda.MemPool``: its ``id`` is memory that captures may share.

    Raises:
        GraphNotJudgedError: it is to allocate in a way of its own.

    """

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        if allocator is not None:
            _refuse("torch.cuda.MemPool(allocator)")
        self.id = Pool()


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Do nothing: what is allocated outside a capture lies in memory of the CPU."""
    yield


def is_current_stream_capturing() -> bool:
    """Whether a capture is under way in this thread."""
    return current_capture() is not None


class CUDAGraph:
    """Stands for ``torch.cuda.CUDAGraph``: the graph is a software graph.

    Raises (from its methods):
        RuntimeError: it is used in an order that torch refuses, too, or cannot be captured.
        GraphNotJudgedError: the software graph cannot do what is asked.

    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._open: OpenCapture | None = None
        self._owner = 0
        self._capture: SoftwareCapture | None = None
        self._pool: Pool | None = None
        self._generators: list[Generator] = []

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin: what this thread does from here on is recorded.

        ``check_input_liveness`` is always on: a replay that would read freed memory is refused.
        """
        if self._capture is not None or self._open is not None:
            raise RuntimeError(_ONCE)
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                f"Unknown capture error mode. Expected one of {', '.join(_MODES)}, "
                f"got {capture_error_mode!r}"
            )
        if isinstance(pool, CUDAGraph):
            raise TypeError("pool is a CUDAGraph: give what its pool() returns")
        if pool is not None and not isinstance(pool, Pool):
            raise TypeError(
                f"pool is {pool!r}: under the software graph give what "
                "torch.cuda.graph_pool_handle() or the pool() of a graph returned in this test"
            )
        begun = SoftwareBackend().begin(pool, others_may_work=capture_error_mode != "global")
        try:
            begun.__enter__()
        except CaptureFailedError as error:
            raise _in_full(error.finding) from None
        mode = current_capture()
        if mode is not None:
            mode.generators += self._generators
        self._open, self._owner, self._pool = begun, threading.get_ident(), begun.pool

    def capture_end(self) -> None:
        """End: the graph can be replayed."""
        self._end(None, None, None)

    def _end(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        begun, self._open = self._open, None
        if begun is None:
            raise RuntimeError("capture_end() was called without a capture_begin() before it")
        if self._owner != threading.get_ident():
            self._open = begun
            raise RuntimeError("a capture must be ended by the thread that began it")
        try:
            begun.__exit__(kind, error, traceback)
        except CaptureFailedError as failed:
            raise _in_full(failed.finding) from None
        if isinstance(error, CaptureFailedError):  # it goes on, with the lines that it came by
            told = _in_full(error.finding)
            if isinstance(told, GraphNotJudgedError):
                raise told from None
            error.args = told.args
        if error is None:
            self._capture = begun.finished()
            findings = self._capture.findings
            remark((" ".join(" ".join(finding_lines(one)).split()) for one in findings), {})

    def instantiate(self) -> None:
        """Make it ready to be replayed, which it is."""
        self._captured("instantiate")

    def replay(self) -> None:
        """Run the recorded work once."""
        self._captured("replay").replay()

    def reset(self) -> None:
        """Let go of the graph and its memory."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.reset()

    def pool(self) -> Pool:
        """Return the memory of the graph, for the ``pool=`` of another capture."""
        self._captured("pool")
        assert self._pool is not None, "what is captured lies in a pool"
        return self._pool

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Take a generator that a replay advances, beside the default one."""
        if isinstance(generator, Generator):
            self._generators.append(generator)
        elif identity_of(generator) != identity_of(torch.default_generator):
            _refuse("register_generator_state of a generator that lies on no GPU")

    def enable_debug_mode(self) -> None:
        """Do nothing: what was captured is known."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the nodes of the graph in the order of their replay, a line each."""
        nodes = self._captured("debug_dump").recording.nodes or ()
        with open(debug_path, "w", encoding="utf-8") as file:
            file.writelines(f"{node.kind} {node.name} {node.where}\n" for node in nodes)

    def raw_cuda_graph(self) -> NoReturn:
        """Refuse: there is no ``cudaGraph_t``."""
        _refuse("raw_cuda_graph()")

    def raw_cuda_graph_exec(self) -> NoReturn:
        """Refuse: there is no ``cudaGraphExec_t``."""
        _refuse("raw_cuda_graph_exec()")

    def get_graph_data(self) -> NoReturn:
        """Refuse: there are no nodes of a CUDA graph."""
        _refuse("get_graph_data()")

    def _captured(self, name: str) -> SoftwareCapture:
        if self._capture is None:
            raise RuntimeError(f"Called CUDAGraph::{name} without a preceding successful capture.")
        return self._capture


class AcceleratorGraph(CUDAGraph):
    """Stands for ``torch.accelerator.Graph``: a ``with`` of it captures the current stream."""

    def __init__(
        self, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default"
    ) -> None:
        super().__init__(keep_graph)
        self.graph_pool, self.capture_error_mode = pool, capture_error_mode

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begin, with what the constructor was given."""
        mode = self.capture_error_mode
        super().capture_begin(self.graph_pool, "global" if mode == "default" else mode)

    def __enter__(self) -> None:
        self.capture_begin()

    def __exit__(self, *raised: Any) -> None:
        self._end(*raised)


class graph:  # as torch writes it
    """Stands for ``torch.cuda.graph``: a ``with`` whose work is recorded."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
        **later: Any,
    ) -> None:
        if not isinstance(cuda_graph, CUDAGraph):
            raise TypeError(
                f"cuda_graph is a {type(cuda_graph).__name__}: under the software graph give a "
                "torch.cuda.CUDAGraph() that was made in this test"
            )
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = Stream() if stream is None else stream
        self.capture_error_mode = capture_error_mode
        self._later = [name for name, value in later.items() if value not in (None, False)]

    def __enter__(self) -> None:
        if self._later:
            _refuse(f"torch.cuda.graph({', '.join(f'{name}=' for name in self._later)})")
        self._entered = stream(self.capture_stream)
        self._entered.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._entered.__exit__()
            raise

    def __exit__(self, *raised: Any) -> None:
        try:
            self.cuda_graph._end(*raised)
        finally:
            self._entered.__exit__()


def end_open_captures() -> list[str]:
    """End the captures of this thread that nobody has ended; return a sentence for each."""
    told = []
    for mode in reversed(list(active_modes())):
        begun = mode.open_capture if isinstance(mode, CaptureMode) else None
        if begun is None:
            continue
        begun.abandon()
        nodes = mode.recorder.nodes
        last = f"; its last work was {nodes[-1].name} at {nodes[-1].where}" if nodes else ""
        told.append(f"a capture that was begun by capture_begin() was never ended{last}")
    return told


def _refuse(call: str) -> NoReturn:
    refuse(call, "there is no graph of the CUDA driver")


def _in_full(finding: CaptureFinding) -> RuntimeError:
    """Return the error of a finding with its place, the reason and what to do."""
    text = "\n".join(finding_lines(finding))
    if finding.check == "not-judged":
        return GraphNotJudgedError(text, (finding,))
    return CaptureFailedError(finding, text)
