"""The exceptions and warnings that users filter on or catch.

Those of functions and tests in processes of their own are ``ChildError`` and below. What is wrong
with captured graphs is ``GraphCaptureError`` and below; ``GraphUsageError`` and
``GraphNotJudgedError`` say that nothing was found out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cudafork.capture.interface.backend import CaptureFinding
    from pytest_cudafork.programs.result import ScriptResult

__all__ = [
    "CaptureFailedError",
    "CapturePairError",
    "ChildCrashed",
    "ChildError",
    "ChildExit",
    "ChildTimeout",
    "CudaForkError",
    "CudaForkWarning",
    "CudaTouchError",
    "GpuBusyError",
    "GraphCaptureError",
    "GraphNotJudgedError",
    "GraphUsageError",
    "PoisonedTouchError",
    "RemoteTraceback",
    "ReplayDiffersError",
    "ReplayFailedError",
    "ScriptTimeout",
]


class CudaForkError(RuntimeError):
    """A fork was refused because CUDA is initialized in this process.

    Raised before the fork, so the process is as it was. Recoverable: start the child with
    ``spawn`` or ``forkserver``, or remove the touch that the message names.
    """


class CudaTouchError(RuntimeError):
    """Something touched CUDA where level ``touch`` allows no touch.

    Unrecoverable for the process (the driver cannot be uninitialized), so later tests in the same
    process run in an initialized one.
    """


class PoisonedTouchError(RuntimeError):
    """A child that was forked from an initialized process touched CUDA.

    On a GPU that child fails with "Cannot re-initialize CUDA in forked subprocess" or
    "CUDA driver initialization failed". Unrecoverable for the child.
    """


class GpuBusyError(RuntimeError):
    """Memory of a GPU did not come back in time; the message says who holds it.

    Recoverable: end those processes, wait longer, or allow more to be in use.
    """


class GraphCaptureError(AssertionError):
    """A captured graph does not compute what eager code computes, or cannot be captured.

    ``findings`` holds everything that is wrong, in the order of the checks. Recoverable: the device
    and the process are usable afterwards.
    """

    def __init__(self, text: str, findings: tuple[CaptureFinding, ...] = ()) -> None:
        super().__init__(text)
        self.findings = findings


class CapturePairError(GraphCaptureError):
    """``capture_pair`` found that warm-up and capture do not fit together; Recoverable."""


class ReplayDiffersError(GraphCaptureError):
    """``assert_replay_equals_eager`` found a replay that eager code contradicts; Recoverable."""


class CaptureFailedError(RuntimeError):
    """Work that no CUDA graph can hold was met while a capture was under way.

    It is a ``RuntimeError``, as CUDA's own refusal is one. ``finding`` names the line of user code
    that cannot be captured; ``text`` stands for what it says where nobody else tells the rest of
    it. Recoverable: the device and the process are as before the capture.
    """

    def __init__(self, finding: CaptureFinding, text: str = "") -> None:
        super().__init__(text or finding.what)
        self.finding = finding

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes as the finding and the text."""
        return type(self), (self.finding, str(self))


class ReplayFailedError(RuntimeError):
    """A replay could not be run, for instance because it would read freed memory.

    ``finding`` says why. Recoverable: nothing was replayed.
    """

    def __init__(self, finding: CaptureFinding) -> None:
        super().__init__(finding.what)
        self.finding = finding

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes as the finding."""
        return type(self), (self.finding,)


class GraphNotJudgedError(RuntimeError):
    """The backend cannot run what the code does: that says nothing for the code or against it.

    ``findings`` says what stands in the way. Recoverable by another backend. It is no
    ``GraphCaptureError``, so that a test that expects a verdict does not pass without one.
    """

    def __init__(self, text: str, findings: tuple[CaptureFinding, ...] = ()) -> None:
        super().__init__(text)
        self.findings = findings


class GraphUsageError(ValueError):
    """A check of graphs was given something that it cannot check; Recoverable by another call.

    It is no ``GraphCaptureError``, so that a test that expects a verdict fails over a typo.
    """


class ChildError(Exception):
    """A child process could not give the result of its function.

    Raised itself where the child could not be started, or where its function, result or exception
    cannot travel between processes. Recoverable: the calling process is as it was.
    """


class ChildExit(ChildError):
    """The child ended by ``sys.exit``, ``os._exit`` or the like instead of returning.

    ``code`` is the exit status (of ``sys.exit``, whatever was passed to it). Recoverable.
    """

    def __init__(self, message: str = "", code: object = None) -> None:
        super().__init__(message)
        self.code = code


class ChildCrashed(ChildError):
    """The child was killed by a signal, or ended with an error at its very end.

    ``exitcode`` is negative for a signal, as in ``multiprocessing``; ``signal_name`` is its name
    or ""; ``stacks`` is what faulthandler wrote at the crash, or "". Recoverable.
    """

    def __init__(
        self,
        message: str = "",
        exitcode: int | None = None,
        signal_name: str = "",
        stacks: str = "",
    ) -> None:
        super().__init__(message)
        self.exitcode = exitcode
        self.signal_name = signal_name
        self.stacks = stacks


class ChildTimeout(ChildError):
    """The child exceeded its time limit and was ended, its descendants with it.

    ``timeout`` is the limit in seconds; ``stacks`` are the stacks of all its threads at that
    moment, or "" where the child could not give them. Recoverable.
    """

    def __init__(self, message: str = "", timeout: float | None = None, stacks: str = "") -> None:
        super().__init__(message)
        self.timeout = timeout
        self.stacks = stacks


class ScriptTimeout(ChildTimeout):
    """A script exceeded its time limit and was ended, all that it had started with it.

    ``timeout`` is the limit in seconds; ``result`` is what it did until then, its output with the
    stacks of its Python processes among that. Recoverable.
    """

    def __init__(
        self, message: str = "", timeout: float | None = None, result: ScriptResult | None = None
    ) -> None:
        super().__init__(message, timeout)
        self.result = result


class RemoteTraceback(Exception):
    """The cause of an exception that came from a child: the child's traceback, as text."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in the child process:\n\n{self.text}"


class CudaForkWarning(UserWarning):
    """Something limits what pytest-cudafork can see or do; the test outcome stands."""


for _name in __all__:
    if _name != "RemoteTraceback":
        globals()[_name].__module__ = "pytest_cudafork"
del _name
