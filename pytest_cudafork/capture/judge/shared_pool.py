"""Graphs that share memory: results that another graph has overwritten, and that are read."""

from __future__ import annotations

import functools
import weakref

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.uses import GraphUses


class SharedPool:
    """The check of one process."""

    def __init__(self, history: History, findings: Findings) -> None:
        self._history = history
        self._findings = findings
        self._alive: weakref.WeakSet[SeenCapture] = weakref.WeakSet()

    def captured(self, capture: SeenCapture) -> None:
        """Know of one more graph."""
        self._alive.add(capture)

    def begins(self, capture: SeenCapture) -> None:
        """Look whether another graph has overwritten a result that this one is about to read.

        What it writes as well may hold its own values by the time that it reads them.
        """
        spoiled, uses = self._history.spoiled, capture.uses
        for memory, use in uses.reads.items() if spoiled else ():
            if memory in uses.writes or uses.addresses.get(memory) in capture.renewed:
                continue
            self._history.tell_of_read(memory, use.where)

    def recomputed(self, capture: SeenCapture) -> None:
        """Note that the results of a graph hold its own values again."""
        for memory in capture.uses.made:
            self._history.spoiled.pop(memory, None)

    def replayed(self, capture: SeenCapture) -> None:
        """Mark results of other graphs that this replay has overwritten."""
        spoiled = self._history.spoiled
        mine: GraphUses = capture.uses
        self.recomputed(capture)
        for memory in [each for each in spoiled if not self._is_of_interest(each)]:
            spoiled.pop(memory, None)
        for other in list(self._alive):
            if other is capture or not other.captured or not other.replays:
                continue
            for memory in other.uses.made:
                if memory in mine.reads or not mine.covers(memory):
                    continue
                if self._is_of_interest(memory):
                    # No graph is among it: results that nobody reads would keep theirs for ever.
                    told = functools.partial(self._tell, memory.text, other.where, capture.where)
                    spoiled[memory] = told
                    self._history.told.discard(memory)

    def _is_of_interest(self, memory: Memory) -> bool:
        """Whether somebody may read a result: it is there, or a graph reads it that is there."""
        if memory.refer() is not None:
            return True
        return any(each.captured and memory in each.uses.reads for each in list(self._alive))

    def _tell(self, text: str, owner: str, by: str, where: str) -> None:
        """Tell that a result is read: which one, who captured its graph, and the other one."""
        self._findings.add(
            GraphFinding(
                "overwritten-result",
                Level.ERROR,
                f"{text}, a result of one graph, is read after the replay of another graph that "
                "uses the same memory of their pool",
                (
                    ("read at", where),
                    ("its graph captured at", owner),
                    ("the other captured at", by),
                ),
                "graphs of one pool may be replayed in the order of their captures only, and "
                "results must be used before the next one overwrites them",
                "copy the result before the other replay (clone), replay in the order of capture, "
                "or give the graphs pools of their own",
            )
        )
