"""What checks of graphs have to say, kept until the report of the test takes it on."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Generic, TypeVar

_PLUGIN = "pytest_cudafork.plugin"
"""The module that makes the reports take it; pytest loads it, and nobody else."""

T = TypeVar("T")


class UntilReport(Generic[T]):
    """Values of one kind.

    Outside pytest nothing is kept: no report is ever made there, and a program that checks graphs
    for days would keep all that was said of them.
    """

    def __init__(self, name: str) -> None:
        self._kept: ContextVar[tuple[T, ...]] = ContextVar(name, default=())

    def add(self, *values: T) -> None:
        """Keep values, if a report may take them."""
        if values and _PLUGIN in sys.modules:
            self._kept.set((*self._kept.get(), *values))

    def take(self) -> tuple[T, ...]:
        """Return what was added since the last call."""
        found = self._kept.get()
        if found:
            self._kept.set(())
        return found
