"""Streams that take part in a capture: forked from the captured one by events, and joined to it.

Work is recorded in the order of the calls, so there is nothing to wait for. What is known is which
stream has waited for which work: all of it must be joined to the captured stream by the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, NoReturn

from pytest_cudafork.capture.interface.backend import CaptureFinding, GraphNode
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.operators.refusal_words import Refusals

__tracebackhide__ = of_refusals

Work = dict[Hashable, int]
"""By stream: how many stretches of work were recorded on it."""

_OUTSIDE = (
    "a graph takes the work of streams that have waited for an event of the captured one; what "
    "CUDA makes of other streams and events within a capture (it runs their work at once, or "
    "refuses it) is not judged without a GPU",
    "fork the stream within the capture (side.wait_stream(torch.cuda.current_stream())), or test "
    "this with the backend 'cuda'",
)


class Mark(NamedTuple):
    """What an event stands for that was recorded within a capture."""

    forks: Forks
    after: Work


class Forks:
    """The streams of one capture.

    Args:
        origin: the captured stream.
        nodes: returns what was recorded so far.
        refusals: of the capture.

    """

    def __init__(
        self, origin: Hashable, nodes: Callable[[], Sequence[GraphNode]], refusals: Refusals
    ) -> None:
        self._origin = self._current = origin
        self._nodes, self._counted = nodes, 0
        self._refusals = refusals
        self._work: Work = {}
        self._lines: dict[Hashable, str] = {}
        self._knows: dict[Hashable, Work] = {origin: {}}  # what each stream that takes part follows

    def takes_part(self, stream: Hashable) -> bool:
        """Whether a stream is the captured one, or was forked from it."""
        return stream in self._knows

    def switched(self, stream: Hashable) -> None:
        """Note that work is recorded on another stream from here on."""
        self._count()
        self._current = stream

    def recorded(self, stream: Hashable) -> Mark:
        """Return what an event stands for that is recorded on a stream now."""
        self._count()
        if stream not in self._knows:
            self._refuse("an event is recorded at {where} on a stream without part in the capture")
        return Mark(self, {**self._knows[stream], stream: self._work.get(stream, 0)})

    def waits(self, stream: Hashable, mark: Any) -> None:
        """Let a stream wait for an event, and so take part."""
        self._count()
        if not isinstance(mark, Mark) or mark.forks is not self:
            self._refuse("a stream waits at {where} for an event of before the capture")
        known = self._knows.setdefault(stream, {})
        for each, count in mark.after.items():
            known[each] = max(count, known.get(each, 0))

    def _count(self) -> None:
        nodes = self._nodes()
        if len(nodes) > self._counted:
            self._counted, stream = len(nodes), self._current
            self._work[stream] = self._work.get(stream, 0) + 1
            self._lines[stream] = nodes[-1].where

    def _refuse(self, what: str) -> NoReturn:
        self._refusals.refuse(what, *_OUTSIDE, check="not-judged")

    def at_end(self) -> CaptureFinding | None:
        """Return what is wrong with the work of some stream at the end of the capture."""
        self._count()
        for stream in self._work:
            if stream not in self._knows:
                return self._finding(
                    stream, "not-judged", "runs on a stream without part in the capture", *_OUTSIDE
                )
        joined = self._knows[self._origin]
        for stream, count in self._work.items():
            if stream != self._origin and joined.get(stream, 0) < count:
                return self._finding(
                    stream,
                    "capture-failed",
                    "runs on a side stream that is not joined to the captured one afterwards",
                    "the captured stream waits for no event that follows this work; CUDA ends such "
                    "a capture with cudaErrorStreamCaptureUnjoined",
                    "let the captured stream wait for it before the capture ends "
                    "(torch.cuda.current_stream().wait_stream(side))",
                )
        return None

    def _finding(
        self, stream: Hashable, check: Any, what: str, why: str, todo: str
    ) -> CaptureFinding:
        where = self._lines[stream]
        at = shown(where) or "a place without Python frames of yours"
        return CaptureFinding(check, f"the work at {at} {what}", where=where, why=why, todo=todo)
