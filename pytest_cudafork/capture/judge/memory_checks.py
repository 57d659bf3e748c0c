"""Memory that a graph uses: is it there, does it lie where it lay, was it ever filled.

Neither are its results filled by the capture, which computes nothing: the first replay does that.
"""

from __future__ import annotations

import functools
import sys

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.uses import GraphUses, Named

_PAST_THE_DISPATCHER = (
    "cupy",
    "numba.cuda",
    "tvm_ffi",
    "cutlass",
    "cuda.bindings.driver",
    "pycuda",
)
"""Libraries whose kernels write memory of torch with no operator: once one is there, that nothing
has written memory cannot be told for sure."""


def works_unseen(capture: SeenCapture) -> str:
    """Return why a graph may hold more than was seen; "": it does not."""
    uses: GraphUses = capture.uses
    if uses.not_seen or capture.backend != "cuda":
        return uses.not_seen
    here = [name for name in _PAST_THE_DISPATCHER if name in sys.modules]
    return f"{here[0]} is imported, whose kernels pass no operator of torch" if here else ""


def check_filled(capture: SeenCapture, findings: Findings) -> None:
    """Look for memory that was handed out within the capture and read before it was written."""
    unseen = works_unseen(capture)
    for one in capture.uses.unfilled:
        none = one.filled == 0
        surely = none and not unseen
        count = "none" if none else f"{one.filled} of {one.read}"
        findings.add(
            GraphFinding(
                "unfilled-read",
                Level.ERROR if surely else Level.SUSPICION,
                f"the graph reads {one.memory.text} that was handed out within its capture, and "
                f"{count} of the elements were written by then",
                (("handed out at", one.allocated), ("read at", one.where)),
                "a replay finds there what the last user of the graph's memory pool has left",
                "fill it within the capture (torch.zeros, copy_), or allocate and fill it before "
                "the capture and keep it",
            )
        )


def await_results(capture: SeenCapture, history: History, findings: Findings) -> None:
    """Have it told if the host reads what a graph that was just captured is to compute."""
    for memory in capture.uses.made:
        if memory.refer() is not None:
            # No graph is among it: memory that is never filled would keep its own.
            told = functools.partial(_read_early, findings, capture.where, memory.text)
            history.uncomputed.add(memory, told)


def _read_early(findings: Findings, captured: str, text: str, taken: str, where: str) -> None:
    lines = [("the result is taken at", taken), ("its graph captured at", captured)]
    if where != taken:
        lines.insert(1, ("read by the host at", where))
    findings.add(
        GraphFinding(
            "unfilled-read",
            Level.ERROR,
            f"the host reads {text}, a result of a graph or what was computed of it, and no replay "
            "has computed that result yet",
            tuple(lines),
            "a capture records and computes nothing: its results hold what their memory held "
            "before",
            "replay the graph after its capture, before the first answer is taken from its results",
        )
    )


def check_there(capture: SeenCapture, findings: Findings) -> None:
    """Look for memory from outside that was freed, or lies elsewhere, since the capture."""
    uses: GraphUses = capture.uses
    for memory, use in {**uses.writes, **uses.reads}.items():
        if memory.owner is not None or (memory.device.type == "cpu" and not memory.shape):
            continue  # of a graph; or a number, which a graph takes by value
        if uses.addresses.get(memory) in capture.renewed:
            continue
        found = _lost(uses, memory, use.where)
        if found is not None:
            findings.add(found)
        elif memory.filled == 0 and memory in uses.reads and memory not in uses.writes:
            findings.add(_never_filled(memory, use.where))


def _lost(uses: GraphUses, memory: Memory, where: str) -> GraphFinding | None:
    storage = memory.refer()
    if storage is None:
        return _gone(memory, where, "was freed")
    address = uses.addresses[memory]
    if storage.data_ptr() != address:
        return _gone(memory, where, "was moved, by a resize,")
    named = next((each for each in uses.named.get(memory, ()) if _has_moved(each, address)), None)
    if named is None:
        return None
    return GraphFinding(
        "moved-input",
        Level.ERROR,
        f"the tensor {memory.text} that the graph read was given other memory since the capture",
        (("read by the graph at", named.where), ("its memory was last written at", memory.where)),
        "a graph holds the address that the tensor had when it was captured, so what the tensor "
        "holds now does not reach it",
        "change it in place (copy_) instead of assigning to .data, or capture anew",
    )


def _gone(memory: Memory, where: str, how: str) -> GraphFinding:
    return GraphFinding(
        "freed-memory",
        Level.ERROR,
        f"the graph uses {memory.text}, whose memory {how} since the capture",
        (("used by the graph at", where), ("last written at", memory.where)),
        "a graph holds addresses and keeps nothing alive: a replay reads, or overwrites, whatever "
        "lies there now",
        "keep the tensor as long as the graph, in the object that owns the graph, and fill it in "
        "place (copy_)",
    )


def _never_filled(memory: Memory, where: str) -> GraphFinding:
    return GraphFinding(
        "unfilled-read",
        Level.SUSPICION,
        f"the graph reads {memory.text}, which was not seen to be written since it was allocated",
        (("allocated at", memory.where), ("read by the graph at", where)),
        "what lies there is what somebody else has left",
        "fill it before the first replay (zeros instead of empty)",
    )


def _has_moved(named: Named, address: int) -> bool:
    tensor = named.tensor()
    if tensor is None:
        return False
    try:
        is_there = tensor.untyped_storage().data_ptr() == address
    except (RuntimeError, NotImplementedError):  # it has no memory, or holds others that have
        return True
    return not is_there or tensor.storage_offset() != named.offset
