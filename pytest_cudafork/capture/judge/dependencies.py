"""What a recorded write depends on today, and whether any of it has changed since."""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.values import Computed, Operation, Read, Write


class CannotTellError(Exception):
    """It cannot be computed again, and that is a gap in what was judged."""


class HistoryError(CannotTellError):
    """It depends on its own former contents: what lies in memory is the truth."""


class Dependency(NamedTuple):
    """Memory that is there, and its version when it was read."""

    memory: Memory
    version: int

    @property
    def has_changed(self) -> bool:
        """Whether it was seen to be written since."""
        return self.memory.version != self.version


def dependencies(write: Write) -> tuple[list[Dependency], str]:
    """Return what a write depends on, and why it cannot be computed again ("": it can).

    Raises:
        HistoryError: it depends on its own former contents.

    """
    return _dependencies(write, {})


def changed_since(read: Read) -> list[Memory]:
    """Return the memory that a value read by the host depends on and that was written since."""
    walk = _Walk({})
    try:
        for operation, recorded in walk.memory(read, recorded=True):
            walk.operation(operation, recorded=recorded)
    except HistoryError:
        return []
    return [each.memory for each in walk.found if each.has_changed]


def is_settled(memory: Memory, write: Write) -> bool:
    """Whether a write to memory cannot be computed again and need not be: what it left is true.

    What it was computed from is gone, as random numbers are, and the rest has not changed since,
    but for what lay in the memory itself.
    """
    return _is_settled(memory, write, {})


def _dependencies(write: Write, settled: dict[Operation, bool]) -> tuple[list[Dependency], str]:
    walk = _Walk(settled)
    walk.operation(write.operation, recorded=True)
    return walk.found, walk.gone


def _is_settled(memory: Memory, write: Write, settled: dict[Operation, bool]) -> bool:
    known = settled.get(write.operation)
    if known is None:
        settled[write.operation] = False  # should it depend on itself
        try:
            found, gone = _dependencies(write, settled)
            others = (each for each in found if each.memory is not memory)
            known = bool(gone) and not any(each.has_changed for each in others)
        except HistoryError:
            known = False
        settled[write.operation] = known
    return known


class _Walk:
    """A walk from a write to what it depends on; ``settled``: what is known of writes by now."""

    def __init__(self, settled: dict[Operation, bool]) -> None:
        self._settled = settled
        self.found: list[Dependency] = []
        self.gone = ""
        self._seen: set[Operation] = set()
        self._first: dict[Memory, int] = {}

    def operation(self, operation: Operation, *, recorded: bool) -> None:
        """Walk on; ``recorded``: by what it read then, not by what it would read now."""
        todo = [(operation, recorded)]
        while todo:
            one, as_recorded = todo.pop()
            if one.computed is Computed.UNKNOWN:
                where = f" ({shown(one.where)})" if one.where else ""
                self.gone = self.gone or f"an input is gone{where}"
            if one in self._seen:
                continue
            self._seen.add(one)
            for read in one.reads:
                todo += self._read(one, read, as_recorded)

    def _read(
        self, operation: Operation, read: Read, recorded: bool
    ) -> list[tuple[Operation, bool]]:
        if not read.written:
            return self.memory(read, recorded=recorded)
        if operation.overwrites:
            return []
        alive = read.memory.held() is not None
        unknown = Computed.UNKNOWN
        return [
            (write.operation, recorded)
            for write in read.writes
            if write.operation.computed is not unknown or not alive
        ]

    def memory(self, read: Read, *, recorded: bool) -> list[tuple[Operation, bool]]:
        """Note what was read and not written; return how it came about, to be walked on."""
        if read.memory.held() is None:
            if not read.writes:
                self.gone = self.gone or "an input is gone"
            return [(write.operation, recorded) for write in read.writes]
        self.found.append(Dependency(read.memory, read.version))
        if recorded and self._first.setdefault(read.memory, read.version) != read.version:
            raise HistoryError("it depends on its history")
        same = recorded and read.memory.version == read.version
        return [
            (write.operation, same)
            for write in read.memory.writes
            if write.operation.live and not _is_settled(read.memory, write, self._settled)
        ]
