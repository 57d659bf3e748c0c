"""Which class of bug a difference looks like, and what to do then.

A hint is a guess and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import GraphNode
from pytest_cudafork.capture.interface.check_names import CheckName
from pytest_cudafork.capture.state.compare import Difference, Tolerance, difference


class Symptoms(NamedTuple):
    """What is known beside the difference itself."""

    other_work_ran: bool  # since the capture, right before this replay
    first: Mapping[str, Any] | None  # what eager computed in the first round
    expected: Any
    got: Any
    unwritten: torch.Tensor | None  # where the poison is still there
    number: int  # 0: first replay of the round
    refills: bool
    nodes: Sequence[GraphNode] | None


class Reading(NamedTuple):
    """Check, words, why it matters, what to do."""

    check: CheckName
    words: str
    why: str
    todo: str


def explain(one: Difference, seen: Symptoms) -> Reading:
    """Return how to tell a difference."""
    if one.host:
        return Reading(
            "replay-differs",
            one.what,
            "Python does not run in a replay: a number that is computed on the host stays what it "
            "was at capture",
            "keep it in a tensor that the graph computes, or make it part of the key that chooses "
            "the graph",
        )
    if seen.unwritten is not None and bool(seen.unwritten.all()):
        empty = seen.nodes is not None and not seen.nodes
        return Reading(
            "no-op-replay",
            f"{one.path}: the replay wrote none of its {seen.unwritten.numel()} elements",
            "the graph is empty" if empty else "eager code leaves the right answer in this memory, "
            "so a graph that does nothing can pass a test that does not overwrite it first",
            "see that the work is issued within the capture, on the capturing stream, and that the "
            "static output is the tensor that the captured code wrote",
        )  # fmt: skip
    words = one.what
    if seen.unwritten is not None and bool(seen.unwritten.any()):
        words += f"; {int(seen.unwritten.sum())} elements were not written at all"
        if _is_tail(seen.unwritten):
            return Reading(
                "replay-differs",
                words,
                "the rows that were not written are the last ones: it looks like a buffer that is "
                "larger than the batch",
                "slice the outputs (outputs=lambda: buffer[:n]), or let vary return the number of "
                "live rows; if all rows are live, look for torch.empty",
            )
    why, todo = _looks_like(one, seen)
    return Reading("replay-differs", words, why, todo)


def _is_tail(unwritten: torch.Tensor) -> bool:
    """Whether whole rows at the end are what was not written."""
    rows = unwritten.reshape(unwritten.shape[0], -1) if unwritten.dim() else unwritten.reshape(1, 1)
    tail = rows.all(1)
    count = int(tail.sum())
    return count > 0 and bool(tail[-count:].all()) and not bool(rows[: len(rows) - count].any())


def _looks_like(one: Difference, seen: Symptoms) -> tuple[str, str]:
    old = (seen.first or {}).get(one.path)
    moved_on = old is not None and difference(one.path, seen.expected, old, Tolerance()) is not None
    if moved_on and difference(one.path, old, seen.got, Tolerance()) is None:
        return (
            "it looks frozen: the replay still gives what eager gave before the change. A value "
            "that was read on the host at capture, or a copy of the input made outside the graph",
            "compute it in the graph from the static input; do not read it with .item(), len() or "
            "a Python attribute",
        )
    if seen.refills:
        return (
            "it looks like stale padding: live results depend on what the refill leaves of an "
            "earlier batch",
            "fill the padded part of every static input, too, or mask it within the graph",
        )
    if one.only_nan:
        return (
            "it looks uninitialized: the replay has NaN where eager has numbers, so the graph "
            "reads memory that nobody fills, or does not write all of its output",
            "look for an initialization that ran in the warm-up only, and for torch.empty",
        )
    if seen.other_work_ran:
        return (
            "it looks like memory that is shared: it was right before the other work ran, which "
            "overwrote or moved what this graph uses",
            "keep what a graph reads in buffers of its own that live as long as the graph, and "
            "never resize or replace them",
        )
    if seen.number:
        return (
            "the first replay was right and the second is not: the graph carries something from "
            "one replay to the next that eager code begins anew",
            "reset within the graph what it accumulates; remember that Python assignments "
            "(self.x = ...) are not replayed",
        )
    return (
        "the graph computes something else than eager code does from the same inputs: look for "
        "host values frozen at capture, Python branches on them, and memory that moved",
        "see the line above, and which values of Python have changed since the capture: put them "
        "in static tensors",
    )
