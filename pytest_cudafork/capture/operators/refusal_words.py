"""How a capture without a GPU refuses what CUDA refuses: the words, and the first one is kept."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.check_names import CheckName
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import line_at_work, shown
from pytest_cudafork.errors import CaptureFailedError

__tracebackhide__ = of_refusals

SYNC_WHY = (
    "a capture records work and does not run it, so there is no value to read yet; "
    "CUDA refuses this with 'operation not permitted when stream is capturing'"
)
SYNC_TODO = (
    "keep the value on the device (torch.where, masks, index_select), or read it before the capture"
)
OPTIMIZER_TODO = (
    "it is the optimizer that keeps its step counter on the host: make it with fused=True, which "
    "is recorded here and on CUDA; for an optimizer without it use the backend 'cuda'"
)
SHAPE_WHY = (
    "the shape of the result depends on values, and a graph has fixed shapes; CUDA waits for the "
    "values here and refuses that while a stream is capturing"
)
SHAPE_TODO = (
    "use a form of fixed size: a mask with torch.where, nonzero_static, repeat_interleave with "
    "output_size, topk"
)
INDEX_PUT_TODO = (
    "use masked_fill, or torch.where(mask, value, x): they take a value on the device; only a "
    "number that the host knows may be assigned to a mask"
)
SPLIT_WHY = (
    "the number and the sizes of the parts are metadata that the host needs; CUDA refuses a tensor "
    "on the device here, and the values of one on the host would be frozen"
)
COPY_WHY = (
    "it copies from pageable host memory to the device, which CUDA refuses while a stream is "
    "capturing; and the values would be frozen"
)
COPY_TODO = (
    "make the tensor before the capture and fill it in place before each replay, or build it on "
    "the device (torch.full, torch.arange)"
)


_WAIT = (
    "a capture records work and does not run it, so there is nothing to wait for; CUDA refuses "
    "this with 'operation not permitted when stream is capturing'",
    "wait before the capture, or after the replay",
)
_AWAITED_TODO = (
    "give it non_blocking=True (in the place of an assignment: x[key].copy_(pinned, "
    "non_blocking=True)), and keep the pinned tensor as long as the graph: each replay copies anew"
)
_BUFFER_WHY = (
    "the pinned tensor does not lie in memory in one piece, or has another shape: torch copies "
    "through pageable memory then, which CUDA refuses while a stream is capturing"
)
_BUFFER_TODO = "copy from or to a contiguous pinned tensor of the same shape"
_STREAM = (
    "it records the operators on CPU tensors in the order of the calls; what forks and joins "
    "streams needs a GPU. (A CUDA graph takes streams that are joined, and refuses synchronize() "
    "and query() of streams and events)",
    "test this function with the backend 'cuda', or leave streams to the caller of it",
)
_OPTIMIZERS = f"torch{os.sep}optim{os.sep}"
CHECKPOINT = f"torch{os.sep}utils{os.sep}checkpoint.py"


def runs_in(part: str) -> bool:
    """Whether code of a file whose path has this part in it is at work in this thread."""
    frame = sys._getframe(1)
    while frame is not None:
        if part in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Refusals:
    """Refuses, and keeps the first refusal: user code may swallow the exception."""

    def __init__(self) -> None:
        self.first: CaptureFinding | None = None

    def refuse(
        self,
        what: str,
        why: str,
        todo: str,
        *,
        check: CheckName = "host-sync",
        where: str | None = None,
    ) -> NoReturn:
        """Raise :class:`CaptureFailedError`; ``what`` may name the place as ``{where}``."""
        where = line_at_work() if where is None else where
        at = shown(where) or "a place without Python frames of yours"
        finding = CaptureFinding(
            check, what.replace("{where}", at), where=where, why=why, todo=todo
        )
        if self.first is None:
            self.first = finding
        raise CaptureFailedError(finding)

    def sync(self, call: str) -> NoReturn:
        """Refuse to read a value on the host."""
        todo = OPTIMIZER_TODO if runs_in(_OPTIMIZERS) else SYNC_TODO
        self.refuse(f"{call} at {{where}} reads a value on the host", SYNC_WHY, todo)

    def shape(self, call: str, todo: str = SHAPE_TODO) -> NoReturn:
        """Refuse work whose size depends on values."""
        self.refuse(
            f"{call} at {{where}} has a result whose shape depends on values",
            SHAPE_WHY,
            todo,
        )

    def host_data(self, call: str) -> NoReturn:
        """Refuse to bring data from the host."""
        todo = OPTIMIZER_TODO if runs_in(_OPTIMIZERS) else COPY_TODO
        self.refuse(f"{call} at {{where}} makes a tensor from host data", COPY_WHY, todo)

    def awaited_copy(self, call: str) -> NoReturn:
        """Refuse to wait for a copy between the device and pinned memory."""
        self.refuse(f"{call} at {{where}} waits for its copy to end", _WAIT[0], _AWAITED_TODO)

    def buffered_copy(self, call: str) -> NoReturn:
        """Refuse to copy by way of memory that is not pinned."""
        self.refuse(f"{call} at {{where}} needs a buffer on the host", _BUFFER_WHY, _BUFFER_TODO)

    def wait(self, call: str) -> NoReturn:
        """Refuse to wait for the device."""
        self.refuse(f"{call}() at {{where}} waits for the device within a capture", *_WAIT)

    def stream(self, call: str) -> NoReturn:
        """Refuse to order work by streams and events."""
        self.refuse(
            f"{call} at {{where}} cannot be captured: the software graph has no streams and events",
            *_STREAM,
            check="not-judged",
        )
