"""The kernels of an eager run, as torch's profiler (CUPTI) tells them.

The run happens once and as it would have happened: warm-up code often does something else the
second time. Names are made comparable with a graph's by :mod:`names`.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.cuda.names import short_name
from pytest_cudafork.capture.cuda.steps import Step, StepHook
from pytest_cudafork.capture.interface.backend import GraphNode
from pytest_cudafork.compat.torch_graphs.functions import profiler_mark

_TAG = "cudafork step "
_RUNTIME = re.compile(r"cu(?:da)?[A-Z]")
# What the profiler shows on the device beside work.
_NO_WORK = frozenset({"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"})


class Event(NamedTuple):
    """What is used of one event of the profiler."""

    name: str
    on_device: bool
    start: int
    end: int
    identity: int  # shared by a call of the CUDA runtime and the kernel that it launches
    operator: int = 0  # identity of the operator that launched it; 0: unknown
    annotation: bool = False  # a mark of the user's, no work


class Kernels(NamedTuple):
    """Work of an eager run; None, and why, where the profiler did not tell."""

    nodes: tuple[GraphNode, ...] | None
    first: dict[int, int]  # step -> index of its first node
    why_not: str = ""


class Tagger(StepHook):
    """Marks each step in the profiler's record, so that a kernel leads to a line."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def before(self, index: int, step: Step) -> None:
        """Open the step's mark."""
        # The fast one passes no dispatcher, so the watch does not see it.
        mark = profiler_mark(f"{_TAG}{index}")
        mark.__enter__()
        self._open.append(mark)

    def after(self, index: int, step: Step) -> None:
        """Close it."""
        self._open.pop().__exit__(None, None, None)


class KernelRecorder:
    """Records the work that a piece of code launches."""

    def __init__(self) -> None:
        self._events: list[Event] | None = None
        self._why_not = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record what is launched meanwhile. Where it cannot, the code runs all the same."""
        profiler = self._start()
        try:
            yield
        finally:
            if profiler is not None:
                self._stop(profiler)

    def _start(self) -> Any:
        activities = torch.profiler.ProfilerActivity
        if activities.CUDA not in torch.profiler.supported_activities():
            self._why_not = "this torch is built without CUPTI, so eager kernels cannot be listed"
            return None
        profiler = torch.profiler.profile(activities=[activities.CPU, activities.CUDA])
        try:
            with _no_warnings():
                profiler.start()
        except RuntimeError as error:  # another profiler is at work
            self._why_not = f"torch's profiler could not start: {error}"
            return None
        return profiler

    def _stop(self, profiler: Any) -> None:
        try:
            torch.cuda.synchronize()
        finally:
            with _no_warnings():
                profiler.stop()
        self._events = [_event(event) for event in profiler.profiler.kineto_results.events()]

    def kernels(self, steps: Sequence[Step]) -> Kernels:
        """What ran on the device, in order, each with the line that launched it."""
        if self._events is None:
            return Kernels(None, {}, self._why_not)
        found = nodes_of(self._events, steps)
        if not found.nodes and any(step.launches for step in steps):
            return Kernels(
                None,
                {},
                "the profiler saw no kernel of an eager run that launched some: CUPTI may not be "
                "permitted here, or another tool uses it",
            )
        return found


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """The profiler warns of its own ways, for instance that it keeps one cycle's events."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _event(event: Any) -> Event:
    start = event.start_ns()
    # Older torch does not tell annotations from kernels; ours are known by their names.
    is_annotation = getattr(event, "is_user_annotation", lambda: False)
    return Event(
        event.name(),
        event.device_type() == torch.autograd.DeviceType.CUDA,
        start,
        start + event.duration_ns(),
        event.correlation_id(),
        event.linked_correlation_id(),
        bool(is_annotation()),
    )


def nodes_of(events: Iterable[Event], steps: Sequence[Step]) -> Kernels:
    """Turn the profiler's events into nodes. Candidates of an autotuner are left out."""
    events = sorted(events, key=lambda event: event.start)
    hosts = [event for event in events if not event.on_device]
    calls = {event.identity: event.start for event in hosts if _RUNTIME.match(event.name)}
    operators = {event.identity: event.start for event in hosts if not _RUNTIME.match(event.name)}
    marks = [
        (event.start, event.end, int(event.name[len(_TAG) :]))
        for event in hosts
        if event.name.startswith(_TAG)
    ]
    begins = [mark[0] for mark in marks]
    nodes: list[GraphNode] = []
    first: dict[int, int] = {}
    for event in events:
        # An annotation of the host is shown on the device, too.
        if not event.on_device or event.annotation or event.name.startswith(_TAG):
            continue
        if event.name in _NO_WORK:
            continue
        moment = operators.get(event.operator, calls.get(event.identity, -1))
        index = _step_at(moment, marks, begins)
        step = steps[index] if index is not None and index < len(steps) else None
        if step is not None and step.tuning:
            continue
        if index is not None:
            first.setdefault(index, len(nodes))
        where = step.where if step is not None else ""
        nodes.append(GraphNode(*_kind_and_name(event.name), where))
    return Kernels(tuple(nodes), first)


def _step_at(
    moment: int, marks: Sequence[tuple[int, int, int]], begins: Sequence[int]
) -> int | None:
    """The innermost step that was under way at a moment of the host."""
    index = bisect.bisect_right(begins, moment) - 1
    while moment >= 0 and index >= 0:
        if moment <= marks[index][1]:
            return marks[index][2]
        index -= 1
    return None


def _kind_and_name(name: str) -> tuple[str, str]:
    for start, kind in (("Memcpy", "memcpy"), ("Memset", "memset")):
        if name.startswith(f"{start} "):
            return kind, kind
    return "kernel", short_name(name)
