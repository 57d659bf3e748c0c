"""Adds up how long the tests of each folder took, for the end of a session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

_MOST_LINES = 12


def table(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the lines of a table of folders, the slowest first; empty if there is only one folder.

    The seconds are those that the tests took, one after the other: several workers take less.
    """
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        folder = report.nodeid.partition("::")[0].rpartition("/")[0]
        seconds[folder] += report.duration
        tests[folder].add(report.nodeid)
    if len(seconds) < 2:
        return []
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:_MOST_LINES]
    return [f"{seconds[one]:7.1f} s {len(tests[one]):5d} tests  {one}" for one in slowest]
