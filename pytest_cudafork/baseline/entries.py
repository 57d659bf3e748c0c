"""The entries of the check's baseline: which culprit is accepted as what, and where it was seen."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.file import BaselineFile, Row, text_of, write

TOUCH, FORK, POISONED = "touch", "fork", "poisoned"
KINDS = (TOUCH, FORK, POISONED)
"""What a culprit may be accepted as: a touch that the level does not allow, what forks are refused
for, and what a forked child's touch fails for."""

TESTS = "tests: "
"""How the tables begin that hold tests and not lines; ``intent/`` knows what they mean."""

_HERE = "./"

_HEADER = """\
# Lines that initialize CUDA before a fork, or where no touch is allowed: known and accepted today.
# Each is known by its file, its function and its text, wherever it moves, and has the test in which
# it was seen. pytest --cuda-fork-check fails on any other, and names those that are gone.
# --cuda-fork-baseline-update=shrink removes these; --cuda-fork-baseline-update writes all anew.
# Tables that begin with "tests:" hold tests that do not run as they were meant to, and why
# (--cuda-fork-intent).
"""
_EXAMPLE = '["tests/conftest.py"]\n"fork: <module>: statement" = "where it was seen"'


class Accepted(NamedTuple):
    """What is accepted: a culprit, as one of ``KINDS``."""

    kind: str
    culprit: Culprit

    @property
    def words(self) -> str:
        """It in one line."""
        file, scope, statement = self.culprit
        where = file if scope == "<module>" else f"{file} in {scope}"
        return f"{self.kind}: {where}: {statement or 'a line whose source is not there'}"

    def to_list(self) -> list[str]:
        """Return it as the ledger holds it."""
        return [self.kind, *self.culprit]

    @classmethod
    def from_list(cls, data: object) -> Accepted | None:
        """Read ``to_list``'s value; None for anything else, as any process may write a ledger."""
        if not isinstance(data, list) or len(data) != 4 or data[0] not in KINDS:
            return None
        return cls(data[0], Culprit(*data[1:])) if all(isinstance(x, str) for x in data) else None


class CheckBaseline:
    """The entries: of each what is accepted, and a place where it was seen.

    A place is the name of a test, "collect FILE" or "start"; of several it is the first
    as ``_order`` has them.
    """

    def __init__(
        self, entries: dict[Accepted, str] | None = None, tests: Iterable[Row] = ()
    ) -> None:
        self.entries = dict(entries or {})
        self.tests = tuple(sorted(tests))
        """The rows of tables about tests, which stay as they are."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CheckBaseline):
            return NotImplemented
        return (self.entries, self.tests) == (other.entries, other.tests)

    __hash__ = None  # type: ignore[assignment]  # it may change

    @classmethod
    def read(cls, path: str | os.PathLike[str], update: str) -> CheckBaseline:
        """Read a file; ``update`` is the option that writes one.

        Raises:
            BaselineError: It is missing, cannot be read, or is no baseline of the check.

        """
        file = BaselineFile.read(path, update, _EXAMPLE)
        tests = [row for row in file.rows if row.table.startswith(TESTS)]
        lines = [row for row in file.rows if not row.table.startswith(TESTS)]
        return cls({_accepted(file, row): row.value for row in lines}, tests)

    def text(self) -> str:
        """Return the file's text: a table for each file, a line for each statement."""
        rows = [
            Row(
                _table_of(each.culprit.file),
                f"{each.kind}: {each.culprit.scope}: {each.culprit.statement}",
                at,
            )
            for each, at in self.entries.items()
        ]
        return text_of([*sorted(rows), *self.tests], _HEADER)

    def updated(
        self, seen: dict[Accepted, list[str]], gone: Iterable[Accepted], *, add: bool
    ) -> CheckBaseline:
        """Return the baseline after a session, or after many.

        Args:
            seen: What was seen, and where.
            gone: The entries that are gone.
            add: Whether what is new is added; otherwise entries are removed only.

        """
        gone = set(gone) - seen.keys()
        entries = {each: at for each, at in self.entries.items() if each not in gone}
        for each, places in seen.items():
            known = entries.get(each)
            if (known is None and not add) or not places or known in places:
                continue
            entries[each] = min(places, key=_order)
        return CheckBaseline(entries, self.tests)

    def changes_since(self, before: CheckBaseline) -> str:
        """Say how many entries there are, and how many were added and removed."""
        added = len(self.entries.keys() - before.entries.keys())
        removed = len(before.entries.keys() - self.entries.keys())
        return f"{len(self.entries)} now, {added} added, {removed} removed"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, at once or not at all.

        Raises:
            BaselineError: It cannot be written.

        """
        write(path, self.text())


def _order(place: str) -> tuple[int, str]:
    """Order places: start-up, collection, tests, and those of a kind by name.

    So the file is the same whichever worker did what first.
    """
    return (0 if place == "start" else 1 if place.startswith("collect ") else 2), place


def _accepted(file: BaselineFile, row: Row) -> Accepted:
    kind, colon, rest = row.key.partition(": ")
    scope, second, statement = rest.partition(": ")
    if kind not in KINDS or not colon or not second or not scope:
        raise file.wrong(
            row.key,
            f"is no entry of this baseline, which begin with {', '.join(KINDS)}: write "
            '"fork: <module>: statement" = "where it was seen", or have it written by '
            "--cuda-fork-baseline-update (the import audit's baseline is another file)",
        )
    return Accepted(kind, Culprit(row.table.removeprefix(_HERE), scope, statement))


def _table_of(file: str) -> str:
    """Return how the table of a file begins; one that reads like a table of tests is told apart."""
    return _HERE + file if file.startswith((TESTS, _HERE)) else file
