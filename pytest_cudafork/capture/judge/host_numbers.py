"""Numbers of the host that a graph took by value: positions, bounds, seeds, lengths."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.again import Again
from pytest_cudafork.capture.judge.dependencies import CannotTellError, changed_since
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.numbers import VIEWS, Call
from pytest_cudafork.capture.record.optimizers import OptimizerStep, numbers_of
from pytest_cudafork.capture.record.recorder import silently
from pytest_cudafork.capture.record.uses import GraphUses, HostNumber

_WHY = "numbers of the host are part of a graph: positions, bounds and seeds stay what they were"
_TODO = "keep the number in a tensor that the graph reads, or capture a graph for each value"


class HostNumbers:
    """Numbers that the graph took by value, and that are others where the graph does not run."""

    def __init__(self, history: History, findings: Findings) -> None:
        self._history = history
        self._findings = findings

    def replayed(self, capture: SeenCapture) -> None:
        """See whether a number was another one in other runs, or would be another one now."""
        uses: GraphUses = capture.uses
        for call, numbers, others in uses.differing:
            self._findings.add(_chosen(call, numbers, others, "in the run before the capture"))
        for call, taken in uses.calls.items():
            later = self._history.numbers.later(call, uses.ended)
            if later is not None and later not in taken and _is_choice(call, taken[0], later):
                self._findings.add(_chosen(call, taken[0], later, "outside the graph since"))
        for step in uses.steps:
            for finding in _scheduled(step):
                self._findings.add(finding)
        for one in uses.host:
            new = self._now(one, uses.ended)
            if new is not None and new != one.value:
                self._findings.add(_frozen(one, new))

    def _now(self, one: HostNumber, captured: int) -> Any:
        """Return what the line has read since, or would read; None: it cannot be told."""
        later = self._history.host.latest(one.where)
        if later is not None and later.at > captured:
            return later.value
        try:
            with silently():
                return Again().value(one.read).item()
        except CannotTellError:
            return None


def _is_choice(call: Call, numbers: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether calls differ in what a caller chooses.

    Whole numbers are bounds, too, which follow from the size of something else.
    """
    if call.name in VIEWS:
        return True
    pairs = zip(numbers, others, strict=False)
    return all(one == other or isinstance(one, float | complex) for one, other in pairs)


def _scheduled(step: OptimizerStep) -> list[GraphFinding]:
    """Return the numbers of an optimizer's groups that are others now than in the graph."""
    optimizer = step.optimizer()
    if optimizer is None:
        return []
    pairs = zip(step.numbers, numbers_of(optimizer), strict=False)
    changed = {
        name: (then[name], now[name])
        for then, now in pairs
        for name in then
        if name in now and then[name] != now[name]
    }
    kind = type(optimizer).__name__
    return [
        GraphFinding(
            "frozen-host-number",
            Level.SUSPICION,
            f"{kind} has {name} = {now} now, and the graph has its step with {name} = {then}",
            (("step captured at", step.where),),
            _WHY,
            f"give {kind} a tensor in its place ({name}=torch.tensor(...)), which a schedule "
            "changes for the graph, too; or capture anew when the number changes",
        )
        for name, (then, now) in changed.items()
    ]


def _frozen(one: HostNumber, new: Any) -> GraphFinding:
    changed = changed_since(one.read)
    lines = [("read by the host at", one.where)]
    if changed:
        lines.append(("changed at", changed[-1].where))
    return GraphFinding(
        "frozen-host-number",
        Level.SUSPICION,
        f"the host read {one.value} from {one.read.memory.text}, a number that is in the graph; it "
        f"would read {new} now",
        tuple(lines),
        _WHY,
        _TODO,
    )


def _chosen(
    call: Call, numbers: tuple[Any, ...], others: tuple[Any, ...], when: str
) -> GraphFinding:
    pairs = zip(numbers, others, strict=False)
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), (numbers, others))
    return GraphFinding(
        "frozen-host-number",
        Level.SUSPICION,
        f"{call.name} has the number {one} in the graph, and had {other} {when}",
        (("passed at", call.where),),
        _WHY,
        _TODO,
    )
