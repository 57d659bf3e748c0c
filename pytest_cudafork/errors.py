"""Owns the exceptions and warnings that users filter on or catch.

It knows nothing of the parts that raise them.
"""

from __future__ import annotations

from pytest_cudafork.child_errors import (
    ChildCrashed,
    ChildError,
    ChildExit,
    ChildTimeout,
)

__all__ = [
    "ChildCrashed",
    "ChildError",
    "ChildExit",
    "ChildTimeout",
    "CudaForkError",
    "CudaForkWarning",
    "CudaTouchError",
    "PoisonedTouchError",
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


class CudaForkWarning(UserWarning):
    """Something limits what pytest-cudafork can see or do; the test outcome stands."""


for _public in (CudaForkError, CudaForkWarning, CudaTouchError, PoisonedTouchError):
    _public.__module__ = "pytest_cudafork"
del _public
