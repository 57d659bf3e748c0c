"""Owns the refusal of what cannot be captured: the words, and that the first one is not lost.

It knows no operation; those that meet one say what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from pytest_cudafork.capture.backend import CaptureFailedError, CaptureFinding

__all__ = ["Refusals"]

SYNC_WHY = (
    "a capture records work and does not run it, so there is no value to read yet; "
    "CUDA refuses this with 'operation not permitted when stream is capturing'"
)
SYNC_TODO = (
    "keep the value on the device (torch.where, masks, index_select), or read it before the capture"
)
SHAPE_WHY = (
    "the shape of the result depends on values, and a graph has fixed shapes; CUDA waits for the "
    "values here and refuses that while a stream is capturing"
)
SHAPE_TODO = (
    "use a form of fixed size: a mask with torch.where, nonzero_static, repeat_interleave with "
    "output_size, topk"
)
COPY_WHY = (
    "it copies from pageable host memory to the device, which CUDA refuses while a stream is "
    "capturing; and the values would be frozen"
)
COPY_TODO = (
    "make the tensor before the capture and fill it in place before each replay, or build it on "
    "the device (torch.full, torch.arange)"
)


class Refusals:
    """Refuses, and keeps the first refusal: user code may swallow the exception."""

    def __init__(self, line: Callable[[], str]) -> None:
        self.line = line
        self.first: CaptureFinding | None = None

    def refuse(
        self, what: str, why: str, todo: str, *, check: str = "host-sync", where: str | None = None
    ) -> NoReturn:
        """Raise :class:`CaptureFailedError`; ``what`` may name the place as ``{where}``."""
        where = self.line() if where is None else where
        at = where or "a place without Python frames of yours"
        finding = CaptureFinding(
            check, what.replace("{where}", at), where=where, why=why, todo=todo
        )
        if self.first is None:
            self.first = finding
        raise CaptureFailedError(finding)

    def sync(self, call: str) -> NoReturn:
        """Refuse to read a value on the host."""
        self.refuse(f"{call} at {{where}} reads a value on the host", SYNC_WHY, SYNC_TODO)

    def shape(self, call: str) -> NoReturn:
        """Refuse a result whose shape depends on values."""
        self.refuse(
            f"{call} at {{where}} has a result whose shape depends on values",
            SHAPE_WHY,
            SHAPE_TODO,
        )

    def host_data(self, call: str) -> NoReturn:
        """Refuse to bring data from the host."""
        self.refuse(f"{call} at {{where}} makes a tensor from host data", COPY_WHY, COPY_TODO)
