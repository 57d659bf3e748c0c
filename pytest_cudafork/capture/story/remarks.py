"""What a check of a graph that passed has to say all the same: notes, and what was not checked.

The report of the test carries it to the terminal, also from a test in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_cudafork.capture.story.until_report import UntilReport

PROPERTY = "cudafork_graphs"
"""The name of the property of a report that holds one remark."""

_REMARKS: UntilReport[str] = UntilReport("cudafork_graph_remarks")


def remark(notes: Iterable[str], not_checked: Mapping[str, str]) -> None:
    """Keep what a check has to say until the report of the test is made."""
    _REMARKS.add(*notes, *(f"not checked: {name}: {why}" for name, why in not_checked.items()))


def take() -> list[str]:
    """Return what was said since the last call, each once."""
    return list(dict.fromkeys(_REMARKS.take()))
