"""Owns what the audit says of one module. Pure.

It does not know how a module was imported, nor how the record is shown.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytest_cudafork.imports.worker.threads import RunningThread
from pytest_cudafork.observe.story.touch import Frame, Touch


class Verdict(enum.Enum):
    """What became of the import of one module in a process of its own."""

    CLEAN = "clean"
    TOUCHES = "touches"
    TOUCHES_THEN_FAILS = "touches, then fails to import"
    TOUCHES_THEN_CRASHES = "touches, then crashes"
    NOT_IMPORTABLE = "not importable"
    NOT_OBSERVABLE = "not observable"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"

    @property
    def touched(self) -> bool:
        """Whether the import initialized CUDA."""
        return self in _TOUCHED


_TOUCHED = (Verdict.TOUCHES, Verdict.TOUCHES_THEN_FAILS, Verdict.TOUCHES_THEN_CRASHES)


@dataclass(frozen=True)
class ImportRecord:
    """One module's verdict.

    Attributes:
        module: Its full name.
        package: The package that was asked for.
        verdict: What became of it.
        without: The library that was hidden, or "".
        touches: The first touch and, if another library made it, the second. A module that ran
            out of time or memory may have touched before.
        reason: Why it could not be imported or observed, how it crashed; one line.
        output: The end of what it wrote.
        seconds: How long its import took.
        confirmed: Whether a fresh interpreter said the same; None if none was asked.
        loaded: The modules that its import added to ``sys.modules``, itself included.
        running: The threads that its import has left running, after they were waited for.

    """

    module: str
    package: str
    verdict: Verdict
    without: str = ""
    touches: tuple[Touch, ...] = ()
    reason: str = ""
    output: str = ""
    seconds: float = 0.0
    confirmed: bool | None = None
    loaded: tuple[str, ...] = ()
    running: tuple[RunningThread, ...] = ()

    @property
    def so_far(self) -> bool:
        """Whether it is clean as far as could be seen: a thread that it has started still runs."""
        return self.verdict is Verdict.CLEAN and bool(self.running)

    @property
    def culprit(self) -> Frame | None:
        """The line that touched first, if Python was running."""
        return self.touches[0].culprit if self.touches else None

    @property
    def where(self) -> str:
        """The culprit as ``file:line``, by which modules are grouped; "" if nothing touched."""
        return self.touches[0].where if self.touches else ""
