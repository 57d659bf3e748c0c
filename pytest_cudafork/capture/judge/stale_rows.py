"""Rows of an earlier batch: a smaller batch refills the first rows, and the graph goes by all.

Rows that nobody refilled are harmless as a rule: what a graph computes of them is thrown away. They
are not where they say to which place something is written, a slot of a KV cache for instance.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.again import as_bytes, last_writers
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.judge.harmless import results_of
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.memory import Memory, Part
from pytest_cudafork.capture.record.uses import GraphUses, Use
from pytest_cudafork.capture.record.values import Write, is_whole
from pytest_cudafork.counted import count_of

_MOST = 64 << 20
"""Bytes that a graph may write for it to be tried."""
_MOST_TRIES = 4
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of the size of floating point ones."""


class _Rows(NamedTuple):
    """What lies in memory that was refilled in part."""

    memory: Memory
    use: Use
    refilled: Part
    where: str  # of the line that refilled it, and that had filled more of it before
    stale: Any  # a storage of one byte an element, 1 where an earlier batch has written it


class StaleRows:
    """The check of one process."""

    def __init__(self, history: History, findings: Findings) -> None:
        self._history = history
        self._findings = findings
        self._tries: weakref.WeakKeyDictionary[SeenCapture, int] = weakref.WeakKeyDictionary()

    def replayed(self, capture: SeenCapture) -> None:
        """Judge what a graph is about to read."""
        uses: GraphUses = capture.uses
        found = [self._left(memory, use) for memory, use in uses.reads.items()]
        rows = [each for each in found if each is not None]
        places = [each for each in rows if each.memory in uses.places]
        for each in places:
            self._findings.add(_finding(each, uses.places[each.memory]))
        if rows and not places and self._may_be_tried(capture) and _say_where(capture, rows):
            for each in rows:
                self._findings.add(_finding(each, each.use.where))

    def ends(self, capture: SeenCapture) -> None:
        """Note what a replay has read."""
        for memory in capture.uses.reads:
            memory.replayed = self._history.at

    def _may_be_tried(self, capture: SeenCapture) -> bool:
        tries = self._tries[capture] = self._tries.get(capture, 0) + 1
        return tries <= _MOST_TRIES

    def _left(self, memory: Memory, use: Use) -> _Rows | None:
        """Return which rows of whole numbers an earlier batch has left; None: there are none."""
        last = memory.replayed
        if not last or memory.at <= last or memory.held() is None:
            return None
        if not is_whole(memory.dtype):
            return None
        parts = [each for each in memory.writes if each.part is not None]
        old = [each for each in parts if each.operation.at <= last]
        for one in reversed(parts[len(old) :]):
            line = one.operation.where
            larger = [
                each
                for each in old
                if each.operation.where == line and _is_beginning(one.part, each.part)
            ]
            stale = _written_by(larger, memory, use) if line and larger else None
            if stale is not None:
                assert one.part is not None, "these have a part"
                return _Rows(memory, use, one.part, line, stale)
        return None


def _written_by(writes: list[Write], memory: Memory, use: Use) -> Any:
    """Return a storage of one byte an element, 1 where these writes still show.

    None: nowhere in what the graph reads, or it cannot be told.
    """
    found = last_writers(memory, use.parts, lambda write: write in writes)
    if found is None:
        return None
    views = [as_bytes(part).view(found, memory.device) for part in use.parts]
    return found if any(bool(view.any()) for view in views) else None


def _is_beginning(part: Any, of: Any) -> bool:
    """Whether a part holds the first rows of another one, and not all of them."""
    alike = (part.offset, part.stride, part.dtype) == (of.offset, of.stride, of.dtype)
    if not alike or not part.shape or not part.shape.numel() or part.shape[1:] != of.shape[1:]:
        return False
    return bool(part.shape[0] < of.shape[0])


def _say_where(capture: SeenCapture, rows: list[_Rows]) -> bool:
    """Whether the graph writes to other places once these rows repeat the last one refilled.

    That is a batch, too, with one request several times; all that the graph writes is put back.
    """
    uses: GraphUses = capture.uses
    mine = uses.written()
    kept = [memory for memory in mine if memory.owner is None and memory.dtype.is_floating_point
            and memory.dtype.itemsize > 1]  # fmt: skip
    if not kept or uses.not_seen or sum(each.nbytes for each in mine) > _MOST:
        return False
    capture.wait()
    former = {memory: memory.bytes().clone() for memory in [*mine, *(e.memory for e in rows)]}
    try:
        for memory in kept:
            _nudge(memory)
        before = [memory.bytes().clone() for memory in kept]
        now = _written(capture, mine, kept, before)
        for each in rows:
            _repeat_the_last_row(each)
        then = _written(capture, mine, kept, before)
    except Exception:  # what it would read then is out of range, for instance
        return False
    finally:
        for memory, value in former.items():
            memory.bytes().copy_(value)
    return any(not torch.equal(one, other) for one, other in zip(now, then, strict=True))


def _written(
    capture: SeenCapture, mine: list[Memory], kept: list[Memory], before: list[Any]
) -> list[Any]:
    """Return for each memory of ``kept`` which elements a run of the graph has written."""
    after = dict(zip(mine, results_of(capture, mine), strict=True))
    return [
        (after[memory] != held).view(-1, memory.dtype.itemsize).any(1)
        for memory, held in zip(kept, before, strict=True)
    ]


def _nudge(memory: Memory) -> None:
    """Change all its numbers but 0 to the next ones towards 0: whatever is written is another.

    An index that the graph makes of one of them stays within its range: on a GPU one that does not
    ends the context.
    """
    values = memory.flat()
    bits = values.view(_BITS[memory.dtype.itemsize])
    bits.sub_((values != 0).to(bits.dtype))


def _repeat_the_last_row(rows: _Rows) -> None:
    memory, part = rows.memory, rows.refilled
    last = part.view(memory.held(), memory.device)[-1]
    count = (memory.nbytes // part.dtype.itemsize - part.offset) // max(part.stride[0], 1)
    all_rows = part._replace(shape=torch.Size((count, *part.shape[1:])))
    held = all_rows.view(memory.held(), memory.device)
    stale = as_bytes(all_rows).view(rows.stale, memory.device).bool()
    held.copy_(torch.where(stale, last.expand_as(held), held))


def _finding(rows: _Rows, where: str) -> GraphFinding:
    count, memory = rows.refilled.shape[0], rows.memory
    first = count_of(count, "row is", "rows are")
    return GraphFinding(
        "stale-rows",
        Level.SUSPICION,
        f"where the graph writes follows from {memory.text}, of which the first {first} of "
        "this batch, and others of an earlier one that had more",
        (("refilled in part at", rows.where), ("read by the graph at", where)),
        "a graph computes all rows that it was captured with: what the rows of an earlier batch "
        "say is done again, in places that are others' by now",
        "let the rows that are left over write where it does no harm: fill them, too, before each "
        "replay (a slot of nobody's, -1 where the kernel skips it)",
    )
