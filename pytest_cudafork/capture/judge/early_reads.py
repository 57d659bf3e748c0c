"""Results of a graph that the host reads before the first replay: a capture computes nothing."""

from __future__ import annotations

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.uncomputed import Tell

__all__ = ["await_results"]


def await_results(capture: SeenCapture, history: History, findings: Findings) -> None:
    """Have it told if the host reads what a graph that was just captured is to compute."""
    for memory in capture.uses.made:
        if memory.refer() is not None:
            history.uncomputed.add(memory, _teller(capture.where, memory.text, findings))


def _teller(captured: str, text: str, findings: Findings) -> Tell:
    """Return what tells it: of no graph, as memory that is never filled would keep its own."""

    def tell(taken: str, where: str) -> None:
        findings.add(_early(captured, text, taken, where))

    return tell


def _early(captured: str, text: str, taken: str, where: str) -> GraphFinding:
    lines = [("the result is taken at", taken), ("its graph captured at", captured)]
    if where != taken:
        lines.insert(1, ("read by the host at", where))
    return GraphFinding(
        "unfilled-read",
        Level.ERROR,
        f"the host reads {text}, a result of a graph or what was computed of it, and no replay has "
        "computed that result yet",
        tuple(lines),
        "a capture records and computes nothing: its results hold what their memory held before",
        "replay the graph after its capture, before the first answer is taken from its results",
    )
