"""pytest-cudafork: find the line that initializes CUDA before a fork.

Words, as they are used all over the package:

* **touch**: a call that initializes the CUDA driver, or tries to. Its **culprit** is the line to
  change: the innermost one that runs at import, or else outside torch and the CUDA libraries.
* **initialized**: said of a process that touched. **Poisoned**: said of one that was forked from an
  initialized or poisoned one; CUDA cannot be used there any more.
* **witness**: what sees a touch when it happens. One is in the driver: the **injection** in a real
  one, or the **phantom** driver, which stands in where there is none. One is in torch's Python API.
* **face**: what the phantom shows, *absent* (no device) or *present* (``sm_90x2``: two GPUs).
* **ledger**: the one file to which all processes of a session write what they saw.
* **watch**: witnesses, ledger and fork guard together, over a process and all that it starts. The
  **guard** refuses a fork before it happens. A **finding** is a record that is an error.
* **isolated**: said of a test with a process of its own. **Methods** are ``fork`` (of the pytest
  process), ``forkserver`` (of the **fork server**, a clean process that has imported the tests) and
  ``spawn`` (a fresh interpreter). A **spare** is such an interpreter, started ahead.
* **audit**: every module of a package is imported in a process of its own, to see which ones touch.
* **lease**: the GPUs that a test has to itself from its set-up to its teardown.
* **pair**: the warm-up and the capture of one forward pass, whose two states are compared.
* **graph backend**: a way to capture, real CUDA graphs or the **software graph**, which records
  torch's operators on the CPU.

Nothing heavy is imported before a name is used. In a process that a watched session starts, the
package is imported before pytest, which then warns that it cannot rewrite the asserts of its
plugins. There are none: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cudafork._version import version as __version__
    from pytest_cudafork.call.isolated import isolated
    from pytest_cudafork.capture.interface.backend import CaptureFinding
    from pytest_cudafork.capture.replay.assert_replay import assert_replay_equals_eager
    from pytest_cudafork.check.state import current_state as cuda_state
    from pytest_cudafork.errors import (
        CaptureFailedError,
        CapturePairError,
        ChildCrashed,
        ChildError,
        ChildExit,
        ChildTimeout,
        CudaForkError,
        CudaForkWarning,
        CudaTouchError,
        GpuBusyError,
        GraphCaptureError,
        GraphNotJudgedError,
        GraphUsageError,
        PoisonedTouchError,
        ReplayDiffersError,
        ReplayFailedError,
        ScriptTimeout,
    )
    from pytest_cudafork.imports.api import audit
    from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
    from pytest_cudafork.observe.driver.probe import CudaState, Verdict
    from pytest_cudafork.observe.story.touch import Touch
    from pytest_cudafork.programs.isolated_env import isolated_env
    from pytest_cudafork.programs.result import ScriptResult
    from pytest_cudafork.programs.run_script import run_script
    from pytest_cudafork.programs.watching import watch

__all__ = [
    "CaptureFailedError",
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
    "GpuBusyError",
    "GraphCaptureError",
    "GraphNotJudgedError",
    "GraphUsageError",
    "ImportRecord",
    "ImportVerdict",
    "PoisonedTouchError",
    "ReplayDiffersError",
    "ReplayFailedError",
    "ScriptResult",
    "ScriptTimeout",
    "Touch",
    "Verdict",
    "__version__",
    "assert_replay_equals_eager",
    "audit",
    "cuda_state",
    "isolated",
    "isolated_env",
    "run_script",
    "watch",
]

_HOME = {
    "CaptureFinding": ("capture.interface.backend", "CaptureFinding"),
    "CudaState": ("observe.driver.probe", "CudaState"),
    "ImportRecord": ("imports.values.records", "ImportRecord"),
    "ImportVerdict": ("imports.values.records", "ImportVerdict"),
    "ScriptResult": ("programs.result", "ScriptResult"),
    "Touch": ("observe.story.touch", "Touch"),
    "Verdict": ("observe.driver.probe", "Verdict"),
    "__version__": ("_version", "version"),
    "assert_replay_equals_eager": ("capture.replay.assert_replay", "assert_replay_equals_eager"),
    "audit": ("imports.api", "audit"),
    "cuda_state": ("check.state", "current_state"),
    "isolated": ("call.isolated", "isolated"),
    "isolated_env": ("programs.isolated_env", "isolated_env"),
    "run_script": ("programs.run_script", "run_script"),
    "watch": ("programs.watching", "watch"),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME.get(name, ("errors", name))
    __tracebackhide__ = True
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from pytest_cudafork.without_torch import needs_torch

        raise ModuleNotFoundError(needs_torch(f"{__name__}.{name} needs"), name="torch") from None
