"""The tests that are known not to run as they are meant to: tables in the file of the baseline."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from pytest_cudafork.baseline.entries import TESTS, CheckBaseline
from pytest_cudafork.baseline.file import BaselineError, Row, alone
from pytest_cudafork.counted import count_of
from pytest_cudafork.intent.kinds import Slip
from pytest_cudafork.settings.intent import KINDS
from pytest_cudafork.settings.options import BASELINE_UPDATE

Known = dict[tuple[str, str], str]
"""The reason of each known slip, by its kind and test."""


def read_known(path: str, *, may_be_missing: bool) -> Known:
    """Read the tables about tests from the baseline.

    Raises:
        BaselineError: The file cannot be read, or is no baseline.

    """
    if may_be_missing and not os.path.lexists(path):
        return {}
    return _known(path, CheckBaseline.read(path, BASELINE_UPDATE.flag).tests)


def _known(path: str, rows: Iterable[Row]) -> Known:
    known: Known = {}
    for row in rows:
        kind = row.table.removeprefix(TESTS)
        if kind not in KINDS:
            kinds = ", ".join(f"{TESTS}{each}" for each in KINDS)
            raise BaselineError(f"{path}: there is no table {row.table!r}: there are {kinds}.")
        known[kind, row.key] = row.value
    return known


def update(
    path: str, slips: Collection[Slip], gone: Collection[tuple[str, str]], *, add: bool
) -> str:
    """Change the tables about tests; the others stay. Return what was written, in words.

    Raises:
        BaselineError: The file cannot be read or written.

    """
    with alone(path):
        there = os.path.lexists(path)
        before = CheckBaseline.read(path, BASELINE_UPDATE.flag) if there else CheckBaseline()
        known = _known(path, before.tests)
        after = {each: why for each, why in known.items() if each not in gone}
        if add:
            after.update({(slip.kind, slip.nodeid): slip.why for slip in slips})
        if after != known or (add and not there):
            rows = [Row(f"{TESTS}{kind}", test, why) for (kind, test), why in after.items()]
            CheckBaseline(before.entries, rows).write(path)
    added, removed = len(after.keys() - known.keys()), len(known.keys() - after.keys())
    return f"{count_of(len(after), 'test')} now, {added} added, {removed} removed"
