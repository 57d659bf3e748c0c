"""The backend of real CUDA graphs: records warm-ups, captures, replays, cleans up after failures.

A capture runs on a side stream into a memory pool, as ``torch.cuda.graph`` does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch

from pytest_cudafork.capture.cuda import libcuda
from pytest_cudafork.capture.cuda.attempt import Attempt, Captured
from pytest_cudafork.capture.cuda.failing_line import explain
from pytest_cudafork.capture.cuda.memory import allocator_map, gone, settle
from pytest_cudafork.capture.cuda.steps import StepRecorder, triton_launches
from pytest_cudafork.capture.cuda.warmup_kernels import KernelRecorder, Tagger
from pytest_cudafork.capture.interface.backend import (
    CAPTURES_ITSELF,
    Capture,
    CaptureFinding,
    GraphBackend,
    Recording,
)
from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.compat.torch_graphs.devices import is_in_bad_fork, visible_gpus
from pytest_cudafork.errors import CaptureFailedError, ReplayFailedError
from pytest_cudafork.observe.driver.probe import Driver, ask_driver
from pytest_cudafork.settings.real_driver import LIBCUDA

_ERROR_MODES = ("global", "thread_local", "relaxed")


class CudaCapture(Capture):
    """A CUDA graph, its static outputs and its memory."""

    def __init__(self, captured: Captured) -> None:
        self._captured: Captured | None = captured
        self.recording = captured.recording
        self.findings = tuple(captured.findings)
        self.pool = captured.pool

    @property
    def graph(self) -> torch.cuda.CUDAGraph | None:
        """Torch's graph, for what this interface does not offer; None after a reset."""
        return self._captured.graph if self._captured is not None else None

    def replay(self) -> None:
        """Run the graph once and wait for it."""
        captured = self._captured
        if captured is None or captured.graph is None:
            raise ReplayFailedError(
                CaptureFinding(
                    "capture-failed",
                    "the graph has been reset, so it cannot be replayed",
                    why="a reset gives the graph and its memory back",
                    todo="capture anew",
                )
            )
        lost = gone(captured.needed)
        if lost:
            raise ReplayFailedError(lost[0])
        try:
            captured.graph.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise ReplayFailedError(_broken_replay(error)) from error

    def reset(self) -> None:
        """Let go of the graph and its memory."""
        captured, self._captured = self._captured, None
        self.recording = dataclasses.replace(self.recording, result=None)
        if captured is not None and captured.graph is not None:
            captured.graph.reset()
            captured.graph = None


def _broken_replay(error: RuntimeError) -> CaptureFinding:
    return CaptureFinding(
        "freed-memory",
        f"the replay ended with: {str(error).strip().splitlines()[0]}",
        why="a kernel of the graph used an address that is not valid, for instance one that "
        "torch's allocator does not know, or an index that was never filled. The CUDA context of "
        "this process is lost after such an error",
        todo="run the test in a process of its own (--cuda-fork-isolate=spawn), and "
        "compute-sanitizer on it; keep every buffer that the graph uses",
    )


class CudaBackend(GraphBackend):
    """Captures real CUDA graphs on the current device.

    Args:
        error_mode: What may break a capture: "global", torch's default (calls of any thread),
            "thread_local" (calls of the capturing thread) or "relaxed".
        generators: Random generators beside the default one that captured code uses.
        kernels: Whether warm-ups are run under the profiler, to list their kernels.

    """

    name: ClassVar[str] = "cuda"

    def __init__(
        self,
        *,
        error_mode: str = "global",
        generators: Iterable[torch.Generator] = (),
        kernels: bool = True,
    ) -> None:
        if error_mode not in _ERROR_MODES:
            raise ValueError(f"error_mode is {error_mode!r}; it may be {', '.join(_ERROR_MODES)}")
        self._error_mode = error_mode
        self._generators = tuple(generators)
        self._kernels = kernels
        self._streams: dict[int, torch.cuda.Stream] = {}

    def why_not(self) -> str | None:
        """Why there can be no CUDA graph in this process; asks without initializing anything."""
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA"
        if is_in_bad_fork() or ask_driver().driver is Driver.POISONED:
            return "this process was forked from one in which CUDA was initialized"
        try:
            library = ctypes.CDLL(LIBCUDA)
        except OSError:
            return f"there is no NVIDIA driver here ({LIBCUDA} cannot be loaded)"
        if getattr(library, "cudafork_state", None) is not None:
            return (
                "there is no GPU here: the driver is this plugin's phantom, which computes nothing"
            )
        try:
            libcuda.LibCuda(library)
        except OSError as error:
            return f"{error}: it needs CUDA 12.0 or later"
        if torch.cuda.is_initialized():
            return None
        return "no GPU is visible to this process" if visible_gpus() == 0 else None

    @property
    def device(self) -> str:
        """Where tensors have to lie."""
        return "cuda"

    def new_pool(self) -> Any:
        """A memory pool that several captures may share."""
        return torch.cuda.graph_pool_handle()

    def synchronize(self) -> None:
        """Wait for all work of the current device."""
        torch.cuda.synchronize()

    def differences(self) -> str:
        """Real graphs differ from themselves nowhere."""
        return ""

    def record(self, fn: Callable[[], Any]) -> Recording:
        """Run ``fn`` on the side stream that captures use, and list its kernels."""
        self._refuse("a warm-up would become part of that graph")
        profiler = KernelRecorder()
        recorder = StepRecorder(Tagger() if self._kernels else None)
        torch.cuda.synchronize()
        before = allocator_map()
        with (
            profiler.running() if self._kernels else contextlib.nullcontext(),
            torch.cuda.stream(self._stream()),
            triton_launches(recorder),
            recorder,
        ):
            result = fn()
        torch.cuda.synchronize()
        settle(recorder.storages, before, allocator_map())
        kernels = profiler.kernels(recorder.steps)
        uses = tuple(
            one.use(min((kernels.first[at] for at in one.steps if at in kernels.first), default=-1))
            for one in recorder.storages
        )
        why_not = kernels.why_not if self._kernels else "kernels of warm-ups were not asked for"
        return Recording(result, kernels.nodes, uses, why_not, recorder.work())

    def capture(self, fn: Callable[[], Any], *, pool: Any = None) -> CudaCapture:
        """Capture ``fn`` on a side stream."""
        self._refuse("CUDA cannot capture within a capture")
        captured = self._attempt(pool if pool is not None else self.new_pool()).run(fn)
        if isinstance(captured, Captured):
            return CudaCapture(captured)
        clue = captured.clue
        if not clue.where:
            # A pool of its own: torch begins no capture in one that a failed capture has left.
            clue = clue._replace(where=self._attempt(self.new_pool()).find_line(fn))
        failed = CaptureFailedError(explain(clue, captured.error))
        # The first error stays visible, as "The above exception was the direct cause".
        raise failed from captured.error

    def _attempt(self, pool: Any) -> Attempt:
        return Attempt(libcuda.load(), self._stream(), pool, self._error_mode, self._generators)

    def _refuse(self, why: str) -> None:
        reason = self.why_not()
        if reason is not None:
            raise CaptureFailedError(
                CaptureFinding("not-judged", f"no CUDA graph can be captured here: {reason}")
            )
        # A new stream is not made for this: that might harm the other capture.
        own = self._streams.get(torch.cuda.current_device())
        streams = [torch.cuda.current_stream(), *([own] if own is not None else [])]
        driver = libcuda.load()
        none = libcuda.CaptureStatus.NONE
        if any(driver.status(one.cuda_stream) is not none for one in streams):
            raise CaptureFailedError(
                CaptureFinding(
                    "capture-failed",
                    "a capture is under way on the current stream already",
                    where=line_at_work(),
                    why=why,
                    todo=f"end the other capture first; {CAPTURES_ITSELF}",
                )
            )

    def _stream(self) -> torch.cuda.Stream:
        """The side stream of the current device, the same for warm-ups and captures."""
        device = torch.cuda.current_device()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]
