"""What a process that has imported a module reports to the audit, and its form on the wire."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pytest_cudafork.imports.values.left_behind import Files, RunningThread, Traces


class ImportResult(NamedTuple):
    """What is known of an import when it is over.

    Attributes:
        kind: "imported", "failed" or "exited".
        error: The exception's class name, or "".
        reason: The exception in one line, or "".
        traceback: Its traceback, cut at the front.
        seconds: How long the import took.
        loaded: The modules that it added to ``sys.modules``.
        state: What the driver says of this process, and ``why`` it cannot say more.
        threads: How many threads Python has; those of libraries know how to be forked.
        changed: Whether the interpreter itself is not as it was.
        running: The threads that the import has left running, as fields of a ``RunningThread``.
        waited: How many seconds these were waited for.
        traces: What else it has left or read, as plain data of ``Traces``; None: nobody asked.
        files: The files that it executed or read, and those that were before it in its process;
            None: nobody asked.
        decides: Whether it has set a variable by which it is decided what a question touches.

    """

    kind: str
    error: str
    reason: str
    traceback: str
    seconds: float
    loaded: list[str]
    state: str
    why: str
    threads: int
    changed: bool
    running: list[Any]
    waited: float
    traces: dict[str, Any] | None = None
    files: list[list[str]] | None = None
    decides: bool = False

    @property
    def left_running(self) -> tuple[RunningThread, ...]:
        """The threads that it has left running."""
        return tuple(RunningThread(*each) for each in self.running)

    @property
    def is_clean(self) -> bool:
        """Whether the process can serve as a fork server for others."""
        is_clean = self.kind == "imported" and self.state == "clean"
        is_clean = is_clean and self.threads == 1 and not self.changed and not self.decides
        # what a fork server leaves or reads would be missing from what each import is told to do
        return is_clean and not (self.traces and any(self.traces.values()))

    @property
    def left(self) -> Traces | None:
        """What else it has left or read; None if nobody asked."""
        return None if self.traces is None else Traces.from_plain(self.traces)

    @property
    def read(self) -> Files | None:
        """The files that it executed or read; None if nobody asked."""
        return None if self.files is None else Files(*map(tuple, self.files))


def encode(result: ImportResult) -> bytes:
    """Return it as one line of JSON."""
    return _dumps(result._asdict()).encode("ascii")


_dumps = json.dumps  # before a module replaces it


def decode(data: bytes) -> ImportResult | None:
    """Read what ``encode`` made; None if it is nothing of the kind."""
    try:
        return ImportResult(**json.loads(data))
    except (ValueError, TypeError):
        return None
