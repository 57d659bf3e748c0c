"""Owns the exceptions and warnings that users filter on or catch.

It knows nothing of the parts that raise them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_cudafork.child_errors import (
    ChildCrashed,
    ChildError,
    ChildExit,
    ChildTimeout,
)

if TYPE_CHECKING:
    from pytest_cudafork.capture.backend import CaptureFinding

__all__ = [
    "CapturePairError",
    "ChildCrashed",
    "ChildError",
    "ChildExit",
    "ChildTimeout",
    "CudaForkError",
    "CudaForkWarning",
    "CudaTouchError",
    "GraphCaptureError",
    "GraphUsageError",
    "PoisonedTouchError",
    "ReplayDiffersError",
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


class GraphUsageError(GraphCaptureError):
    """A check of graphs was given something that it cannot check; Recoverable by another call."""


class CudaForkWarning(UserWarning):
    """Something limits what pytest-cudafork can see or do; the test outcome stands."""


for _public in (
    CapturePairError,
    CudaForkError,
    CudaForkWarning,
    CudaTouchError,
    GraphCaptureError,
    GraphUsageError,
    PoisonedTouchError,
    ReplayDiffersError,
):
    _public.__module__ = "pytest_cudafork"
del _public
