"""The lines on tests that named one start method and ran under another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_cudafork.counted import count_of
from pytest_cudafork.isolate.start_methods import ran_otherwise

if TYPE_CHECKING:
    import pytest

_MOST = 10


def start_method_lines(reports: Iterable[pytest.TestReport], *, verbose: bool = False) -> list[str]:
    """Return, for each pair of methods, how many tests named one and ran under the other.

    Args:
        reports: those of all tests.
        verbose: all tests, instead of the first ones.

    """
    tests: dict[tuple[str, str], dict[str, str]] = {}
    for report in reports:
        for wanted, ran, place in ran_otherwise(report.user_properties):
            tests.setdefault((wanted, ran), {})[report.nodeid] = place
    lines = []
    for (wanted, method), found in tests.items():
        how_many = count_of(len(found), "test")
        lines.append(f"start methods: {how_many} wanted {wanted} and ran {method}:")
        shown = list(found.items())[: None if verbose else _MOST]
        lines += [f"  {nodeid} ({place})" for nodeid, place in shown]
        if len(found) > len(shown):
            lines.append(f"  ... and {len(found) - len(shown)} more (-v shows them)")
    return lines
