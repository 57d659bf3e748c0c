"""Owns which verdicts a fresh interpreter must confirm before they are reported, and who wins.

It does not know how a module is imported, afresh or not. The records of one package, with one
library hidden or none, are settled by one ``Confirmer``.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pytest_cudafork.imports.records import ImportRecord, Verdict

SAMPLE = 3
"""How many clean verdicts are confirmed."""
MOST_CRASHES = 5
"""How many crashes and exceeded time limits are confirmed."""


class Settled(NamedTuple):
    """A record that may be reported.

    Attributes:
        record: Its ``confirmed`` says whether a fresh interpreter was asked, and agreed.
        artifact: What the template had said, in words, if the fresh interpreter did not agree.

    """

    record: ImportRecord
    artifact: str = ""


class Confirmer:
    """Settles records in any order.

    A line that touches is confirmed by the first module that names it. If that fails, the line is
    distrusted: every other module that names it is imported afresh. Of the clean verdicts a sample
    is confirmed, drawn by the package's name, so that it is the same in every session; it grows
    where one of them was wrong. Crashes and exceeded time limits are confirmed one by one.
    """

    def __init__(self, package: str, modules: Iterable[str], sample: int = SAMPLE) -> None:
        self._ranks = sample_order(package, modules)
        self._sample = sample
        self._known: set[str] = set()
        self._distrusted: set[str] = set()
        self._crashes = 0
        self._not_clean: set[str] = set()

    def wants(self, record: ImportRecord) -> bool:
        """Whether a fresh interpreter is to be asked about a record."""
        if record.verdict.touched:
            return record.where not in self._known or record.where in self._distrusted
        if record.verdict in (Verdict.CRASHED, Verdict.TIMED_OUT):
            return self._crashes < MOST_CRASHES
        return record.verdict is Verdict.CLEAN and self._is_in_sample(record.module)

    def _is_in_sample(self, module: str) -> bool:
        """Whether it is one of the first; those that turned out not to be clean do not count."""
        left = [name for name in self._ranks if name not in self._not_clean]
        return module in left[: self._sample]

    def settle(self, record: ImportRecord, fresh: Callable[[str], ImportRecord]) -> Settled:
        """Return what may be reported of a module.

        Args:
            record: What the import in a process forked from the template said.
            fresh: Imports a module in a fresh interpreter.

        """
        if record.verdict is not Verdict.CLEAN:
            self._not_clean.add(record.module)
        if not self.wants(record):
            return Settled(record)
        self._crashes += record.verdict in (Verdict.CRASHED, Verdict.TIMED_OUT)
        answer = fresh(record.module)
        agreed = agree(record, answer)
        if record.verdict.touched:
            self._known.add(record.where)
            if not agreed:
                self._distrusted.add(record.where)
        elif record.verdict is Verdict.CLEAN and not agreed:
            self._sample += SAMPLE
        if agreed:
            return Settled(dataclasses.replace(record, confirmed=True))
        return Settled(dataclasses.replace(answer, confirmed=False), said(record))


def agree(first: ImportRecord, second: ImportRecord) -> bool:
    """Whether two records of a module say the same: the verdict and, if it touched, the line."""
    same = first.verdict is second.verdict
    return same and (not first.verdict.touched or first.where == second.where)


def said(record: ImportRecord) -> str:
    """Return a verdict in words, with its line if there is one."""
    where = f" at {record.where}" if record.verdict.touched else ""
    return f"{record.verdict.value}{where}"


def sample_order(package: str, modules: Iterable[str]) -> list[str]:
    """Return the modules in the order in which they are taken for the sample."""
    names = sorted(modules)
    random.Random(package).shuffle(names)
    return names
