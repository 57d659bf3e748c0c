"""Owns torch's refusal of optimizers that are not made for graphs, also where there is no GPU.

Torch asks for ``capturable`` where it finds a GPU only. It does not know how a step is recorded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from pytest_cudafork.capture.operators.refusals import Refusals
from pytest_cudafork.capture.software.patches import replaced

__all__ = ["refused"]

# The name differs from release to release; 2.9 and later have both.
_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


@contextlib.contextmanager
def refused(refusals: Refusals) -> Iterator[None]:
    """Refuse steps of this thread that torch would refuse in a CUDA graph."""
    owner = threading.get_ident()

    def check(self: Any) -> None:
        capturable = all(group.get("capturable", True) for group in self.param_groups)
        if not capturable and threading.get_ident() == owner:
            refusals.refuse(
                f"the step of {type(self).__name__} at {{where}} cannot be captured: it is made "
                "with capturable=False",
                "its step counter is a number of the host, which a graph would keep from the "
                "capture; torch raises a RuntimeError here on CUDA",
                "make it with capturable=True; and with fused=True (Adam, AdamW), as torch takes "
                "capturable=True without it on a GPU only. For other optimizers use the backend "
                "'cuda'",
                check="capture-failed",
            )

    with contextlib.ExitStack() as undo:
        for name in _CHECKS:
            if hasattr(Optimizer, name):
                undo.enter_context(replaced(Optimizer, name, check))
        yield
