"""Which frames of a traceback pytest leaves out: ours, between the user's line and a refusal.

pytest looks for ``__tracebackhide__`` among the globals of a frame's module, and calls it.
"""

from __future__ import annotations

from typing import Protocol

from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError, ReplayFailedError


class _Raised(Protocol):
    """What is needed of pytest's ``ExceptionInfo``."""

    @property
    def value(self) -> BaseException:
        """The exception."""


def of_refusals(raised: _Raised | None) -> bool:
    """Whether the exception is one that we raise on purpose: any other is a fault, to be shown."""
    refusals = (CaptureFailedError, ReplayFailedError, GraphNotJudgedError)
    return raised is not None and isinstance(raised.value, refusals)
