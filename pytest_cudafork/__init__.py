"""pytest-cudafork: find the line that initializes CUDA before a fork.

Owns the public names. Nothing heavy is imported before a name is used.

In a process that a watched session starts, the package is imported before pytest, which then warns
that it cannot rewrite the asserts of its plugins. There are none: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cudafork._version import version as __version__
    from pytest_cudafork.capture.interface.backend import CaptureFinding
    from pytest_cudafork.capture.replay.assert_replay import assert_replay_equals_eager
    from pytest_cudafork.check.state import current_state as cuda_state
    from pytest_cudafork.errors import (
        CapturePairError,
        ChildCrashed,
        ChildError,
        ChildExit,
        ChildTimeout,
        CudaForkError,
        CudaForkWarning,
        CudaTouchError,
        GraphCaptureError,
        GraphUsageError,
        PoisonedTouchError,
        ReplayDiffersError,
    )
    from pytest_cudafork.imports.api import audit
    from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
    from pytest_cudafork.observe.driver.probe import CudaState, Verdict
    from pytest_cudafork.observe.story.touch import Touch

__all__ = [
    "CaptureFinding",
    "CapturePairError",
    "ChildCrashed",
    "ChildError",
    "ChildExit",
    "ChildTimeout",
    "CudaForkError",
    "CudaForkWarning",
    "CudaState",
    "CudaTouchError",
    "GraphCaptureError",
    "GraphUsageError",
    "ImportRecord",
    "ImportVerdict",
    "PoisonedTouchError",
    "ReplayDiffersError",
    "Touch",
    "Verdict",
    "__version__",
    "assert_replay_equals_eager",
    "audit",
    "cuda_state",
]

_HOME = {
    "CaptureFinding": ("capture.interface.backend", "CaptureFinding"),
    "CudaState": ("observe.driver.probe", "CudaState"),
    "ImportRecord": ("imports.values.records", "ImportRecord"),
    "ImportVerdict": ("imports.values.records", "ImportVerdict"),
    "Touch": ("observe.story.touch", "Touch"),
    "Verdict": ("observe.driver.probe", "Verdict"),
    "__version__": ("_version", "version"),
    "assert_replay_equals_eager": ("capture.replay.assert_replay", "assert_replay_equals_eager"),
    "audit": ("imports.api", "audit"),
    "cuda_state": ("check.state", "current_state"),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME.get(name, ("errors", name))
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
