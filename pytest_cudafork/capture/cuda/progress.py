"""How far a graph has grown at each step of a capture, and the step at which it broke."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pytest_cudafork.capture.cuda.libcuda import CaptureStatus, DriverError, LibCuda
from pytest_cudafork.capture.cuda.steps import Step, StepHook
from pytest_cudafork.capture.interface.backend import CaptureFinding


class Grown(NamedTuple):
    """What a step added to the graph."""

    first: int  # index of its first node
    end: int
    stream: int  # on which its work went
    elsewhere: bool  # that stream was not being captured


class Break(NamedTuple):
    """The step at which the capture was found broken."""

    step: int
    before: bool  # it was broken when the step began: what lies between it and the one before


class Progress(StepHook):
    """Looks at the captured stream around each step."""

    def __init__(self, cuda: LibCuda, stream: int) -> None:
        self._cuda = cuda
        self._stream = stream
        self._graph = 0
        self.grown: list[Grown] = []
        self.broken: Break | None = None

    def before(self, index: int, step: Step) -> None:
        """Note how large the graph is, and whether it is broken already."""
        if self.broken is None and self._cuda.status(self._stream) is not CaptureStatus.ACTIVE:
            self.broken = Break(index, before=True)
        current = torch.cuda.current_stream().cuda_stream
        elsewhere = (
            current != self._stream and self._cuda.status(current) is not CaptureStatus.ACTIVE
        )
        count = self._count()
        self.grown.append(Grown(count, count, current, elsewhere))

    def after(self, index: int, step: Step) -> None:
        """Note how far the graph has grown, and whether the step broke it."""
        if self.broken is None and self._cuda.status(self._stream) is not CaptureStatus.ACTIVE:
            self.broken = Break(index, before=False)
        self.grown[index] = self.grown[index]._replace(end=self._count())

    def _count(self) -> int:
        if self.broken is not None:
            return self.grown[-1].end if self.grown else 0
        if not self._graph:
            self._graph = self._cuda.graph_in_progress(self._stream)
        try:
            return self._cuda.count(self._graph) if self._graph else 0
        except DriverError:  # lines are a courtesy: without them the capture is as good
            return self.grown[-1].end if self.grown else 0

    def captured(self, step: int) -> bool:
        """Whether a step put work into the graph."""
        return self.grown[step].end > self.grown[step].first

    def lines(self, steps: Sequence[Step], nodes: int) -> list[str]:
        """The line that issued each node of the graph.

        A step may lie within another one (a kernel that an operator launches): the inner one is
        later in the list, and nearer.
        """
        lines = [""] * nodes
        for step, grown in zip(steps, self.grown, strict=False):
            for node in range(grown.first, min(grown.end, nodes)):
                lines[node] = step.where or lines[node]
        return lines

    def last_on_another_stream(self, steps: Sequence[Step]) -> str:
        """The last line that worked on another stream that is part of the capture."""
        for step, grown in zip(reversed(steps), reversed(self.grown), strict=False):
            if step.launches and grown.stream != self._stream and not grown.elsewhere:
                return step.where
        return ""

    def left_out(self, steps: Sequence[Step]) -> list[CaptureFinding]:
        """A finding for each line that did work on a stream that was not being captured."""
        lines: dict[str, list[str]] = {}
        for step, grown in zip(steps, self.grown, strict=False):
            if grown.elsewhere and step.launches and grown.end == grown.first:
                lines.setdefault(step.where, []).append(step.name)
        return [
            CaptureFinding(
                "not-captured",
                f"{_some(names)} ran on a stream that is not being captured",
                where=where,
                why="it ran once, at once, and is not part of the graph: a replay leaves it out",
                todo="work on the stream that is captured, or have the other stream wait for it "
                "first (other.wait_stream(torch.cuda.current_stream())) and join it again",
            )
            for where, names in lines.items()
        ]


def _some(names: Sequence[str]) -> str:
    """Operators in words: the first ones, and how many more."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - 3} more" if len(different) > 3 else ""
    return ", ".join(different[:3]) + more
