"""Which program a process was running when something happened: an exec keeps the number alone.

The program that a process turns into by ``exec`` knows nothing of what the one before has done: the
kernel takes its memory away, and CUDA with it. A number may also be given to another process.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

from pytest_cudafork.observe.base.records import Record

NOW = float("inf")
"""A moment after all that a ledger tells."""


class Image(NamedTuple):
    """A program in a process, from its beginning to the next one's.

    Attributes:
        pid: The process.
        begin: When it began, as the ledger's ``t``; minus infinity: not seen.
        end: When the next program of this number began.
        child: The record of the fork's child that it began as; None: by ``exec``, or not seen.
        by_exec: Whether it was seen to begin by ``exec``.

    """

    pid: int
    begin: float
    end: float
    child: Record | None
    by_exec: bool

    def holds(self, pid: int, moment: float) -> bool:
        """Whether something in a process at a moment was in this program."""
        return pid == self.pid and self.begin <= moment < self.end


class Images:
    """The programs of all processes of a ledger."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._begins: dict[int, list[tuple[float, Record]]] = {}
        self._touched: dict[int, float] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take in the ledger's next record."""
        pid, moment = int(record["pid"]), moment_of(record)
        if record["k"] == "touch" and not record.get("again"):
            self._touched[pid] = moment
        elif record["k"] == "child" or (record["k"] == "process" and record.get("began", True)):
            if record.get("early"):  # a .pth file runs before the watch begins
                moment = min(moment, self._touched.get(pid, moment))
            # A list that is sorted is empty meanwhile, and another thread may be reading it.
            insort(self._begins.setdefault(pid, []), (moment, record), key=lambda begin: begin[0])

    def of(self, pid: int, moment: float = NOW) -> Image:
        """Return the program that a process was running at a moment."""
        begin, end, record = -NOW, NOW, None
        for at, beginning in self._begins.get(pid, ()):
            if at > moment:
                end = at
                break
            begin, record = at, beginning
        child = record if record is not None and record["k"] == "child" else None
        return Image(pid, begin, end, child, record is not None and child is None)


def moment_of(record: Record) -> float:
    """Return when a record was written; one without a time was before all others."""
    return int(record.get("t") or 0)
