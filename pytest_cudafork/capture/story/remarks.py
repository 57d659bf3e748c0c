"""What checks of graphs have to say, kept until the report of the test takes it on.

A remark is what a check that passed has to say all the same: a note, or what was not checked. The
report of the test carries it to the terminal, also from a test in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Generic, TypeVar

PROPERTY = "cudafork_graphs"
"""The name of the property of a report that holds one remark."""

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


_REMARKS: UntilReport[str] = UntilReport("cudafork_graph_remarks")


def remark(notes: Iterable[str], not_checked: Mapping[str, str]) -> None:
    """Keep what a check has to say until the report of the test is made."""
    _REMARKS.add(*notes, *(f"not checked: {name}: {why}" for name, why in not_checked.items()))


def take() -> list[str]:
    """Return what was said since the last call, each once."""
    return list(dict.fromkeys(_REMARKS.take()))
