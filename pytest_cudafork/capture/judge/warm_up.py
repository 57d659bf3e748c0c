"""Work of the run before a capture that the graph lacks: what is done on the first use alone."""

from __future__ import annotations

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.dependencies import CannotTellError, dependencies
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.uses import GraphUses, Use
from pytest_cudafork.capture.record.values import Write, is_whole


def check_warm_up(capture: SeenCapture, findings: Findings) -> None:
    """Compare a graph that is replayed for the first time with the run before its capture."""
    uses: GraphUses = capture.uses
    if capture.replays or not uses.began:
        return
    lines = {where for _, where in uses.lines}
    for memory, use in uses.reads.items():
        if memory.held() is None or memory.at > uses.at or memory in uses.writes:
            continue
        for write in memory.writes:
            if write.operation.at >= uses.began and write.operation.where not in lines:
                _missing(uses, memory, use, write, findings)


def _missing(uses: GraphUses, memory: Memory, use: Use, write: Write, findings: Findings) -> None:
    """Tell of a value that the run computed of an input of the graph, if it is such a value."""
    operation = write.operation
    if not (operation.live and operation.computes and operation.where):
        return
    try:
        found, gone = dependencies(write)
    except CannotTellError:
        return
    of = [
        each.memory
        for each in found
        if each.memory in uses.reads
        and each.memory is not memory
        and each.memory.at < uses.began
        and is_whole(each.memory.dtype)
    ]
    if of and not gone:
        findings.add(_lacks(memory, of[0], operation.where, use.where))


def _lacks(memory: Memory, of: Memory, computed: str, read: str) -> GraphFinding:
    return GraphFinding(
        "missing-work",
        Level.SUSPICION,
        f"the graph reads {memory.text}, which the run before its capture has computed of "
        f"{of.text}, an input of the graph, and lacks the line that did",
        (("computed at", computed), ("read by the graph at", read)),
        "what is done on the first use alone (a planner, a cache) is done by the warm-up and is "
        "not part of the graph: each replay goes by what it gave then",
        "compute it inside the capture (give the capture a state of its own), or again before each "
        "replay into the same memory (copy_)",
    )
