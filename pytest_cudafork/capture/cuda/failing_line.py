"""Finds the line of user code at which a capture failed, and words the failure.

CUDA often says only later that a capture has failed: "operation failed due to a previous error
during capture". Three things tell the line, in this order: the operator after which the captured
stream was found broken; the traceback of a call that was refused there and then; a second run,
traced line by line, that asks the driver after each line.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.lines import (
    is_foreign,
    line_of,
    line_of_traceback,
    place,
    shown,
)
from pytest_cudafork.capture.operators.rules import NO_RULE, RULES

_CAPTURE_WORDS = re.compile(
    r"(?:stream|graph|cuda)[^\n]{0,80}captur|captur[^\n]{0,40}(?:stream|graph|mode)"
    r"|error during capture|STREAM_CAPTURE",
    re.IGNORECASE,
)
_PREVIOUS = re.compile(r"previous error during capture|StreamCaptureInvalidated", re.IGNORECASE)
_REFUSED = re.compile(r"not permitted when stream is capturing|StreamCaptureUnsupported")
_UNJOINED = re.compile(r"unjoined|StreamCaptureUnjoined", re.IGNORECASE)
_GENERATOR = re.compile(r"generator|philox|current_seed|Offset increment", re.IGNORECASE)


class Clue(NamedTuple):
    """What is known of a failure before it is explained."""

    where: str  # file:line; "" if unknown
    operator: str = ""  # "aten.nonzero.default"; "" where it was none
    between: tuple[str, str] = ("", "")  # the last line known good, and one known bad
    unjoined: str = ""  # the last line that worked on another stream


def is_about_capture(error: BaseException) -> bool:
    """Whether CUDA or torch raised an error because a capture is under way."""
    return isinstance(error, (RuntimeError, OSError)) and bool(_CAPTURE_WORDS.search(str(error)))


def is_late(error: BaseException | None) -> bool:
    """Whether an error only says that the capture was broken before."""
    return error is None or bool(_PREVIOUS.search(str(error)))


def raising_line(error: BaseException | None) -> str:
    """The user's line in an error's traceback."""
    return line_of_traceback(error.__traceback__) if error is not None else ""


def explain(clue: Clue, error: BaseException | None) -> CaptureFinding:
    """Say what failed, where, why and what to do."""
    said = _first_line(error)
    short = clue.operator.removeprefix("aten.").partition(".")[0]
    sync = RULES.get(short, NO_RULE).written_as
    why = "a capture records work without running it, so there is no value to wait for yet"
    if error is not None and _UNJOINED.search(str(error)):
        return CaptureFinding(
            "capture-failed",
            f"work on another stream was not joined before the capture ended ({said})",
            where=clue.unjoined or clue.where,
            why="the graph would end before that work does",
            todo="before the function returns, let the captured stream wait for the other one: "
            "torch.cuda.current_stream().wait_stream(other)",
        )
    if sync:
        return CaptureFinding(
            "host-sync",
            f"{clue.operator} waits for the GPU: {sync} ({said})",
            where=clue.where,
            why=why,
            todo="keep the value on the device, or compute it before the capture and pass it in",
        )
    if error is not None and _GENERATOR.search(str(error)):
        return CaptureFinding(
            "capture-failed",
            f"a random generator of its own is used in the capture ({said})",
            where=clue.where or raising_line(error),
            why="a graph advances only generators that were registered before the capture",
            todo="use the default generator, or register it: "
            "CUDAGraph.register_generator_state, CudaBackend(generators=[...])",
        )
    refused = bool(_REFUSED.search(said))
    what = f"{clue.operator} cannot be captured" if short else "this line cannot be captured"
    if refused and not short:
        what = "this line waits for the GPU, or allocates by itself"
    if not clue.where:
        what = "the capture was broken by a call that no line of this thread's Python made"
        if any(clue.between):
            what = "the capture was broken {} and {}".format(
                f"after {shown(clue.between[0])}" if clue.between[0] else "between its start",
                f"before {shown(clue.between[1])}" if clue.between[1] else "its end",
            )
    return CaptureFinding(
        "host-sync" if refused else "capture-failed",
        f"{what} ({said})",
        where=clue.where or clue.between[1] or clue.between[0],
        why="while a stream is captured, nothing may wait for the GPU, allocate by cudaMalloc, ask "
        "an event, or use the legacy default stream",
        todo="move the call before the capture, or out of the captured function; another thread's "
        "call counts too",
    )


def _first_line(error: BaseException | None) -> str:
    if error is None:
        return "CUDA: the stream's capture was invalidated"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class LineTracer:
    """Runs code and asks after each line of user code whether the capture still holds."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds
        self._last = ""
        self.where = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Trace this thread; what traced it before does so again afterwards."""
        previous = sys.gettrace()
        thread = threading.get_ident()

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if threading.get_ident() != thread or self.where:
                return None
            if is_foreign(frame.f_code.co_filename):
                return None
            self._look(frame, event)
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(previous)
            if not self.where and not self._holds():
                self.where = self._last

    def _look(self, frame: FrameType, event: str) -> None:
        if not self._holds():
            self.where = self._last or place(frame.f_code.co_filename, frame.f_lineno)
            return
        if event == "return":
            # What runs next is the line that called this one.
            self._last = line_of(frame.f_back)
        else:
            self._last = place(frame.f_code.co_filename, frame.f_lineno)
