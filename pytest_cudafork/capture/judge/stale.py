"""Stale derived data: what a graph reads was computed before the capture, and its inputs changed.

Each such value is computed again on what its inputs hold now, and compared with what lies there.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.again import Again, difference
from pytest_cudafork.capture.judge.dependencies import (
    CannotTellError,
    Dependency,
    HistoryError,
    dependencies,
)
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding
from pytest_cudafork.capture.judge.harmless import is_harmless
from pytest_cudafork.capture.judge.rules import Facts, level_of
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.recorder import silently
from pytest_cudafork.capture.record.uses import GraphUses, Use
from pytest_cudafork.capture.record.values import Operation, Write, ancestors, is_whole

_SMALL = 1 << 16
"""Bytes up to which memory is kept and compared, for writes that pass no dispatcher."""
_MOST_RUNS = 64

_WHY = (
    "a replay repeats what was captured of the device's work: what was computed ahead of the "
    "capture, or by the host, keeps its value until somebody computes it again, in place"
)
_TODO = (
    "compute it on the device inside the capture, or again before each replay into the same memory "
    "(copy_). If it is meant to stay, say so by '# captures: ignore' on one of these lines"
)

_MISSED = (
    "it was not seen how it came about: until the software graph was imported, nothing was looked "
    "at (--cuda-fork-graphs=software has all of it looked at)"
)


class _Judged(NamedTuple):
    """What was said of memory that a graph reads, and of which state of things."""

    version: int
    seen: list[Dependency]
    blind: bool  # memory of the host may have changed unseen
    findings: list[GraphFinding]

    def holds(self, memory: Memory) -> bool:
        """Whether nothing has changed since."""
        same = self.version == memory.version and not self.blind
        return same and not any(each.has_changed for each in self.seen)


class _Graph:
    """What was learned of one graph right after its capture, when nothing had changed."""

    def __init__(self) -> None:
        self.kept: dict[Memory, tuple[int, Tensor]] = {}
        self.checksums: dict[Memory, tuple[int, int]] = {}
        self.odd: dict[Operation, str] = {}
        """Operations that do not reproduce what is there, with the reason."""
        self.judged: dict[Memory, _Judged] = {}
        # Held weakly: a plan that is refreshed before each replay is another operation each time.
        self.counted: weakref.WeakSet[Operation] = weakref.WeakSet()
        self.gaps: weakref.WeakSet[Operation] = weakref.WeakSet()


class StaleData:
    """The check of one process."""

    def __init__(self, history: History, findings: Findings) -> None:
        self._history = history
        self._findings = findings
        self._graphs: weakref.WeakKeyDictionary[SeenCapture, _Graph] = weakref.WeakKeyDictionary()

    # -- at a capture ------------------------------------------------------------------------------

    def captured(self, capture: SeenCapture) -> None:
        """Learn of a graph what can be computed again, while nothing has changed."""
        graph = self._graphs[capture] = _Graph()
        uses: GraphUses = capture.uses
        for memory, use in uses.reads.items():
            if self._history.missed and _was_never_written(memory):
                self._findings.judged()
                self._findings.cannot(_MISSED)
            if not _is_derived(uses, memory):
                continue
            if memory.nbytes <= _SMALL:
                graph.kept[memory] = memory.version, memory.bytes().clone()
            for write in memory.writes:
                if write.operation.live:
                    runs = self._history.later
                    runs.setdefault(write.operation.where, deque(maxlen=_MOST_RUNS))
                    graph.odd[write.operation] = self._try_out(graph, memory, write, use)

    def _try_out(self, graph: _Graph, memory: Memory, write: Write, use: Use) -> str:
        """Return why running a write again does not tell; "": it reproduces what is there."""
        operation = write.operation
        try:
            if operation.launch and not operation.overwrites and write is memory.writes[-1]:
                operation.overwrites = _overwrites(memory, write)
            found, gone = dependencies(write)
            for each in {one.memory for one in found}:
                if each.device.type == "cpu" and each.nbytes <= _SMALL:
                    graph.checksums[each] = each.version, each.checksum()
            unchanged = not any(each.has_changed for each in found)
            if not gone and unchanged and difference(memory, write, use.parts, Again()):
                return "running it again on the same inputs gave something else"
        except CannotTellError as why:
            return str(why)
        return ""

    # -- at a replay -------------------------------------------------------------------------------

    def replayed(self, capture: SeenCapture) -> None:
        """Judge what a graph is about to read."""
        graph = self._graphs.get(capture)
        if graph is None:
            return
        uses: GraphUses = capture.uses
        again = Again()
        for memory, use in uses.reads.items():
            if not _is_derived(uses, memory):
                continue
            known = graph.judged.get(memory)
            if known is None or not known.holds(memory):
                known = self._judge(capture, graph, memory, use, again)
                graph.judged[memory] = known
            for finding in known.findings:
                self._findings.add(finding)

    def _judge(
        self, capture: SeenCapture, graph: _Graph, memory: Memory, use: Use, again: Again
    ) -> _Judged:
        seen: list[Dependency] = []
        findings: list[GraphFinding] = []
        blind = False
        for write in memory.writes:
            if not write.operation.live:
                continue
            try:
                found, gone = dependencies(write)
            except HistoryError:
                continue
            seen += [Dependency(one.memory, one.memory.version) for one in found]
            changed = [one.memory for one in found if one.has_changed]
            unseen, watched = self._changed_unseen(graph, found)
            blind = blind or watched
            if write.operation not in graph.counted:
                graph.counted.add(write.operation)
                self._findings.judged()
            if not changed and not unseen:
                continue
            stale = _Stale(capture, memory, use, write, changed, unseen)
            told = self._compare(graph, stale, again, gone)
            if told is not None:
                findings.append(told)
        return _Judged(memory.version, seen, blind, findings)

    def _changed_unseen(
        self, graph: _Graph, found: Iterable[Dependency]
    ) -> tuple[list[Memory], bool]:
        """Return memory of the host that was changed past the dispatcher; whether any may be."""
        changed, watched = [], False
        for one in found:
            version, checksum = graph.checksums.get(one.memory, (-1, 0))
            if not one.has_changed and version == one.version:
                watched = True
                if one.memory.held() is not None and one.memory.checksum() != checksum:
                    changed.append(one.memory)
        return changed, watched

    def _compare(
        self, graph: _Graph, stale: _Stale, again: Again, gone: str
    ) -> GraphFinding | None:
        memory, write = stale.memory, stale.write
        try:
            if gone:
                raise CannotTellError(gone)
            kept = graph.kept.get(memory)
            if kept is not None and kept[0] == memory.version:
                with silently():
                    if not torch.equal(kept[1], memory.bytes()):
                        raise CannotTellError(
                            "its memory was written past torch's operators, by another thread, or "
                            "while nobody looked"
                        )
            differs = difference(memory, write, stale.use.parts, again)
            if not differs:
                assert write.part is not None, "what can be computed again covers a part"
                if stale.use.more and difference(memory, write, [write.part], again):
                    raise CannotTellError("the graph reads more parts of it than are looked at")
                return None
            odd = graph.odd.get(write.operation, "")
            if odd:
                raise CannotTellError(odd)
            return self._finding(stale, differs, self._facts(stale, again))
        except HistoryError:
            return None
        except CannotTellError as why:
            if write.operation not in graph.gaps:
                graph.gaps.add(write.operation)
                where = shown(write.operation.where) or "an unknown line"
                self._findings.cannot(f"{memory.text}, computed at {where}: {why}")
            return None

    def _facts(self, stale: _Stale, again: Again) -> Facts:
        write, memory, uses = stale.write, stale.memory, stale.capture.uses
        runs = self._history.later.get(write.operation.where, ())
        changed = {*stale.seen, *stale.unseen}
        return Facts(
            computes=write.operation.computes,
            refreshed=memory.at > uses.ended,
            ambiguous=_would_be_the_same(stale),
            whole=any(is_whole(each.dtype) for each in changed),
            heavy=any(each.heavy for each in ancestors(write.operation)),
            ran_again=any(at > uses.ended and changed & read for at, read in runs),
            harmless=is_harmless(stale.capture, memory, write, again),
        )

    @staticmethod
    def _finding(stale: _Stale, differs: str, facts: Facts) -> GraphFinding | None:
        level = level_of(facts)
        if level is None:
            return None
        memory, write, capture = stale.memory, stale.write, stale.capture
        cause, how = (stale.seen or stale.unseen)[-1], "input changed at"
        if not stale.seen:
            how = (
                "input changed unseen (past torch's operators, by another thread, or while nobody "
                "looked) since"
            )
        at, when = write.operation.at, "after the capture"
        if at <= capture.uses.at:
            when = "before the capture"
        elif at <= capture.uses.ended:
            when = "by the host within the capture"
        return GraphFinding(
            "stale-data",
            level,
            f"the graph reads {memory.text}, computed {when} from {cause.text}, which has changed "
            f"since: {differs}",
            (
                ("computed at", write.operation.where),
                ("read by the graph at", stale.use.where),
                (how, cause.where),
            ),
            _WHY,
            _TODO,
        )


class _Stale(NamedTuple):
    """A write that a graph reads and of which inputs have changed."""

    capture: SeenCapture
    memory: Memory
    use: Use
    write: Write
    seen: list[Memory]  # inputs that operators have changed
    unseen: list[Memory]  # inputs that something else has changed, NumPy for instance


def _would_be_the_same(stale: _Stale) -> bool:
    """Whether it would be what it is with what other lines had in its inputs' memory then.

    What these computed of what is gone cannot be had again: it may be so.
    """
    then = Again(as_recorded=True)
    try:
        return not difference(stale.memory, stale.write, stale.use.parts, then)
    except HistoryError:
        raise
    except CannotTellError:
        return True


def _was_never_written(memory: Memory) -> bool:
    """Whether no write to it was seen, nor that it was handed out."""
    return not memory.writes and not memory.version and memory.filled < 0


def _is_derived(uses: GraphUses, memory: Memory) -> bool:
    """Whether what a graph reads there was computed outside, and not by the graph itself."""
    if not memory.live or memory.held() is None:
        return False
    own = uses.writes.get(memory)
    if own is None:
        return True
    reads = uses.reads[memory].parts
    return not any(part.overlaps(other) for part in reads for other in own.parts)


def _overwrites(memory: Memory, write: Write) -> bool:
    """Whether a kernel gives the same whatever lies in what it writes: zeros, its own result."""
    assert write.part is not None, "a launch writes parts"
    with silently():
        held = write.part.view(memory.held(), memory.device)
        results = (Again().result(write, base=base) for base in ("zeros", "memory"))
        return all(torch.equal(each, held) for each in results)
