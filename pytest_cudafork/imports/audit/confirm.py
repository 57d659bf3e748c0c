"""Which verdicts a fresh interpreter must confirm before they are reported, and which one counts.

A module that was imported by a child of a fork server may have found things that other
modules left there. The records of one package, with one library hidden or none, are checked by one
``Confirmer``.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pytest_cudafork.imports.audit.verdicts import OVER_MEMORY
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict

SAMPLE = 3
"""How many clean verdicts are confirmed."""
MOST_CRASHES = 5
"""How many crashes and exceeded time limits are confirmed."""
MOST_ERRORS = 3
"""For how many kinds of errors it is confirmed that a module cannot be imported."""


class CheckedRecord(NamedTuple):
    """A record that may be reported.

    Attributes:
        record: Its ``confirmed`` says whether a fresh interpreter was asked, and agreed.
        artifact: What the fork server had said, in words, if the fresh interpreter did not agree.

    """

    record: ImportRecord
    artifact: str = ""


class Confirmer:
    """Checks records in any order.

    A line that touches is confirmed by the first module that names it. If that fails, the line is
    distrusted: every other module that names it is imported afresh. Of the clean verdicts a sample
    is confirmed, drawn by the package's name, so that it is the same in every session; it grows
    where one of them was wrong. Crashes and exceeded time limits are confirmed one by one; of the
    modules that cannot be imported, the first with each class of error, as it is with lines.
    """

    def __init__(self, package: str, modules: Iterable[str], sample: int = SAMPLE) -> None:
        self._ranks = sample_order(package, modules)
        self._sample = sample
        self._known: set[str] = set()
        self._distrusted: set[str] = set()
        self._crashes = 0
        self._errors = 0
        self._passed: set[str] = set()

    def wants(self, record: ImportRecord) -> bool:
        """Whether a fresh interpreter is to be asked about a record."""
        if record.verdict.touched:
            return record.where not in self._known or record.where in self._distrusted
        if record.verdict in (ImportVerdict.CRASHED, ImportVerdict.TIMED_OUT):
            # Afresh, a module also holds what it shares with others otherwise.
            return self._crashes < MOST_CRASHES and record.reason != OVER_MEMORY
        if record.verdict is ImportVerdict.NOT_IMPORTABLE:
            error = _error(record)
            if error not in self._known and self._errors < MOST_ERRORS:
                return True
            return error in self._distrusted
        return record.verdict is ImportVerdict.CLEAN and self._is_in_sample(record.module)

    def _is_in_sample(self, module: str) -> bool:
        """Whether it is one of the first that are left, of as many as are still to be drawn."""
        left = (name for name in self._ranks if name not in self._passed)
        return module in itertools.islice(left, max(0, self._sample))

    def check(self, record: ImportRecord, fresh: Callable[[str], ImportRecord]) -> CheckedRecord:
        """Return what may be reported of a module.

        Args:
            record: What the import in a child of the fork server said.
            fresh: Imports a module in a fresh interpreter.

        """
        wanted = self.wants(record)
        self._passed.add(record.module)
        if not wanted:
            return CheckedRecord(record)
        answer = fresh(record.module)
        if (
            answer.verdict is ImportVerdict.TIMED_OUT
            and record.verdict is not ImportVerdict.TIMED_OUT
        ):
            self._take_note(record, agreed=True)
            return CheckedRecord(
                record
            )  # afresh it imports more: that it takes longer says nothing
        agreed = agree(record, answer)
        self._take_note(record, agreed=agreed)
        if agreed:
            return CheckedRecord(dataclasses.replace(record, confirmed=True))
        return CheckedRecord(dataclasses.replace(answer, confirmed=False), said(record))

    def _take_note(self, record: ImportRecord, *, agreed: bool) -> None:
        """Remember what was asked, and what cannot be trusted."""
        if record.verdict is ImportVerdict.CLEAN:
            self._sample += -1 if agreed else SAMPLE
        elif record.verdict in (ImportVerdict.CRASHED, ImportVerdict.TIMED_OUT):
            self._crashes += 1
        else:
            key = record.where if record.verdict.touched else _error(record)
            self._errors += not record.verdict.touched and key not in self._known
            self._known.add(key)
            if not agreed:
                self._distrusted.add(key)


def agree(first: ImportRecord, second: ImportRecord) -> bool:
    """Whether two records of a module say the same: the verdict and, if it touched, the line."""
    same = first.verdict is second.verdict
    return same and (not first.verdict.touched or first.where == second.where)


def _error(record: ImportRecord) -> str:
    """Return the class of the error with which an import failed."""
    return record.reason.partition(":")[0]


def said(record: ImportRecord) -> str:
    """Return a verdict in words, with its line if there is one."""
    where = f" at {record.where}" if record.verdict.touched else ""
    return f"{record.verdict.value}{where}"


def sample_order(package: str, modules: Iterable[str]) -> list[str]:
    """Return the modules in the order in which they are taken for the sample."""
    names = sorted(modules)
    random.Random(package).shuffle(names)
    return names
