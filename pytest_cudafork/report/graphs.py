"""The lines on checks of graphs that passed with a remark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_cudafork.capture.story.remarks import PROPERTY

if TYPE_CHECKING:
    import pytest

_MOST = 10


def remark_lines(reports: Iterable[pytest.TestReport], *, verbose: bool = False) -> list[str]:
    """Return a line for each remark, with the tests that it is about.

    Args:
        reports: those of tests that passed.
        verbose: all remarks and all tests, instead of the first ones.

    """
    tests: dict[str, list[str]] = {}
    for report in reports:
        for name, text in report.user_properties:
            if name == PROPERTY:
                tests.setdefault(" ".join(str(text).split()), []).append(report.nodeid)
    shown = list(tests.items())[: None if verbose else _MOST]
    lines = [f"graphs: {_names(nodeids, verbose)}: {text}" for text, nodeids in shown]
    if len(tests) > len(shown):
        lines.append(f"graphs: and {len(tests) - len(shown)} more remarks (-v shows them)")
    return lines


def _names(nodeids: list[str], verbose: bool) -> str:
    names = list(dict.fromkeys(nodeids))
    if verbose or len(names) == 1:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"
