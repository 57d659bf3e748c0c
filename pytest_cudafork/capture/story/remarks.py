"""What a check of a graph that passed has to say all the same: notes, and what was not checked.

The report of the test carries it to the terminal, also from a test in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar

PROPERTY = "cudafork_graphs"
"""The name of the property of a report that holds one remark."""

_REMARKS: ContextVar[tuple[str, ...]] = ContextVar("cudafork_graph_remarks", default=())


def remark(notes: Iterable[str], not_checked: Mapping[str, str]) -> None:
    """Keep what a check has to say until the report of the test is made."""
    made = [*notes, *(f"not checked: {name}: {why}" for name, why in not_checked.items())]
    if made:
        _REMARKS.set((*_REMARKS.get(), *made))


def take() -> list[str]:
    """Return what was said since the last call, each once."""
    found = _REMARKS.get()
    if found:
        _REMARKS.set(())
    return list(dict.fromkeys(found))
