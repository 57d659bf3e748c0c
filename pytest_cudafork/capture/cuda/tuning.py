"""Owns whether an autotuner is at work, which runs candidates that are no work of the function."""

from __future__ import annotations

import functools
from types import FrameType

from pytest_cudafork.capture.interface.lines import is_foreign

__all__ = ["is_tuning"]

# Where Triton and Inductor time candidates.
_TUNERS = ("triton/testing.py", "torch/_inductor/runtime/benchmarking.py")


def is_tuning(frame: FrameType | None) -> bool:
    """Whether a tuner runs between the innermost frame of a stack and the user's line."""
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if _is_tuner(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=8192)
def _is_tuner(filename: str) -> bool:
    return filename.replace("\\", "/").endswith(_TUNERS)
