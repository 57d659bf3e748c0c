"""The backend that needs no GPU: it records work on CPU tensors and runs it again at a replay.

What operators, kernels, threads and functions of the host do meanwhile stands in the other modules
of this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.backend import (
    Capture,
    CaptureFinding,
    GraphBackend,
    Recording,
)
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.seen import (
    Watch,
    replay_seen,
    reset_seen,
    watch_in_force,
)
from pytest_cudafork.capture.software import streams
from pytest_cudafork.capture.software.capture_mode import CaptureMode
from pytest_cudafork.capture.software.differences import DIFFERENCES, explaining_gpu_code
from pytest_cudafork.capture.software.mode import EagerMode, Recorder
from pytest_cudafork.capture.software.places import known_places
from pytest_cudafork.capture.software.pool import Pool
from pytest_cudafork.capture.software.session import capturing, noting
from pytest_cudafork.capture.software.shapes import Shapes
from pytest_cudafork.capture.software.tape import Tape
from pytest_cudafork.compat.torch_graphs.operators import without_torch_function
from pytest_cudafork.errors import CaptureFailedError, ReplayFailedError

__tracebackhide__ = of_refusals


class SoftwareCapture(Capture):
    """A recorded tape, its results and the memory it lies in."""

    def __init__(
        self, tape: Tape, recording: Recording, findings: tuple[CaptureFinding, ...], pool: Pool
    ) -> None:
        self.recording = recording
        self.findings = findings
        self._tape: Tape | None = tape
        self._pool: Pool | None = pool
        self.seen_by: Watch | None = None

    def replay(self) -> None:
        """Run the recorded work once."""
        if self._tape is None:
            raise ReplayFailedError(
                CaptureFinding(
                    "capture-failed",
                    "the graph was reset and cannot be replayed",
                    todo="capture it anew",
                )
            )
        replay_seen(self, self._run, self.seen_by)

    def _run(self) -> None:
        assert self._tape is not None, "it was not reset"
        with torch.inference_mode(False), torch.no_grad(), without_torch_function():
            self._tape.replay(self.recording.nodes or ())

    def reset(self) -> None:
        """Let go of the work and the memory."""
        reset_seen(self)
        if self._tape is not None:
            self._tape.clear()
        self._tape = self._pool = None
        self.recording = dataclasses.replace(self.recording, result=None)


class OpenCapture(contextlib.AbstractContextManager["OpenCapture"]):
    """A capture between its beginning and its end: what a ``with`` runs is recorded, not executed.

    Raises (at the end of the ``with``):
        CaptureFailedError: something in it cannot be captured, or a capture is under way already.

    """

    def __init__(self, mode: CaptureMode, pool: Pool) -> None:
        self.pool = pool
        self._mode = mode
        self._scope = capturing(mode)
        self._watch: Watch | None = None

    def __enter__(self) -> OpenCapture:
        """Begin."""
        self._scope.__enter__()
        self._mode.open_capture = self
        self._watch = watch_in_force()
        if self._watch is not None:
            self._watch.begun(self, "software")
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """End, as an error of the code or of the capture where there is one."""
        self._mode.open_capture = None
        with self._watched_end(well=error is None):
            self._scope.__exit__(kind, error, traceback)
            first = self._mode.refusals.first
            if first is None or isinstance(error, CaptureFailedError):
                return
            if error is None or isinstance(error, Exception):
                raise CaptureFailedError(first) from error

    @contextlib.contextmanager
    def _watched_end(self, *, well: bool) -> Iterator[None]:
        """Tell who listens of the end, and of the failure where it is one."""
        if self._watch is None:
            yield
            return
        self._watch.closing(self)
        try:
            yield
        except BaseException:
            self._watch.failed(self)
            raise
        if not well:
            self._watch.failed(self)

    def abandon(self) -> None:
        """End without a verdict: nobody has ended it, and nobody wants what was captured."""
        self._mode.open_capture = None
        with self._watched_end(well=False):
            self._scope.__exit__(RuntimeError, RuntimeError("nobody has ended the capture"), None)

    def finished(self, result: Any = None) -> SoftwareCapture:
        """Return what was captured; ``result`` holds its static outputs."""
        self._mode.settle()
        recorder = self._mode.recorder
        made = SoftwareCapture(
            self._mode.tape, recorder.recording(result), tuple(recorder.findings), self.pool
        )
        if self._watch is not None:
            made.seen_by = self._watch
            self._watch.captured(self, made, SoftwareCapture._run, self.pool)
        return made


class SoftwareBackend(GraphBackend):
    """Captures work on CPU tensors.

    ``host_scalars``: tensors of one number that stand for numbers on the host, which a graph takes
    by value when it is captured. All other tensors lie on the device.
    """

    name: ClassVar[str] = "software"

    def __init__(self, host_scalars: Iterable[Tensor] = ()) -> None:
        self._host_scalars = tuple(host_scalars)
        self._shapes = Shapes()

    def why_not(self) -> str | None:
        """It can be used wherever torch can."""
        return None

    @property
    def device(self) -> str:
        """Where tensors lie; those of code that is shown a GPU lie on the CPU and say "cuda"."""
        return "cpu" if known_places() is None else "cuda"

    def device_of(self, tensor: Tensor) -> torch.device:
        """The device that a tensor says it lies on; where that is not known, a graph takes it."""
        on_host = known_places()
        if on_host is None or on_host(tensor) is True or not tensor.is_cpu:
            return tensor.device
        return torch.device("cuda")

    def new_pool(self) -> Pool:
        """Memory that several captures may share."""
        return Pool()

    def beside_graphs(self) -> contextlib.AbstractContextManager[object]:
        """Let code that orders work by streams do nothing of it, as in a recorded run."""
        return streams.ignored()

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def record(self, fn: Callable[[], Any]) -> Recording:
        """Run ``fn`` eagerly and list what it does."""
        recorder = Recorder()
        mode = EagerMode(recorder, self._shapes)
        with explaining_gpu_code(), noting(mode):
            result = fn()
        return recorder.recording(result)

    def begin(self, pool: Pool | None = None, *, others_may_work: bool = False) -> OpenCapture:
        """Return a capture that begins where its ``with`` does.

        ``others_may_work``: operators of other threads are theirs, and no error.
        """
        pool = Pool() if pool is None else pool
        recorder = Recorder(pool)
        mode = CaptureMode(recorder, self._shapes, pool)
        mode.others_may_work = others_may_work
        for each in self._host_scalars:
            mode.note_host(each)
        return OpenCapture(mode, pool)

    def capture(self, fn: Callable[[], Any], *, pool: Any = None) -> SoftwareCapture:
        """Run ``fn`` once, recording its work instead of running it."""
        with self.begin(pool) as capture:
            result = fn()
        return capture.finished(result)

    def differences(self) -> str:
        """In what a CUDA graph may do something else."""
        return DIFFERENCES
