"""What a recorded write depends on today, and whether any of it has changed since."""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.judge.again import HistoryError
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.values import Computed, Operation, Read, Write

__all__ = ["Dependency", "dependencies"]


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
    walk = _Walk()
    walk.operation(write.operation, recorded=True)
    return walk.found, walk.gone


class _Walk:
    """A walk from a write to what it depends on."""

    def __init__(self) -> None:
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
        alive = read.memory.refer() is not None
        if read.written:
            if operation.overwrites:
                return []
            unknown = Computed.UNKNOWN
            return [
                (write.operation, recorded)
                for write in read.writes
                if write.operation.computed is not unknown or not alive
            ]
        if not alive:
            if not read.writes:
                self.gone = self.gone or "an input is gone"
            return [(write.operation, recorded) for write in read.writes]
        self.found.append(Dependency(read.memory, read.version))
        if recorded and self._first.setdefault(read.memory, read.version) != read.version:
            raise HistoryError("it depends on its history")
        same = recorded and read.memory.version == read.version
        return [(write.operation, same) for write in read.memory.writes if write.operation.live]
