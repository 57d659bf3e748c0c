"""The baseline: a TOML file that accepts the modules which initialize CUDA today."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_cudafork.baseline.file import BaselineFile, Row, text_of, write
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.paths import short_path

UPDATE_OPTION = "--cuda-fork-imports-update"
SHELL_UPDATE_OPTION = "--update"
"""What the same is called on the audit's own command line."""

_HEADER = f"""\
# Modules that initialize CUDA when they are imported, and the lines that do it: known and
# accepted. The import audit fails on any other, and asks to remove those that have become clean.
# To write it anew, add {UPDATE_OPTION} to the options of pytest, or
# {SHELL_UPDATE_OPTION} to those of `python -m pytest_cudafork imports`.
"""
_WITHOUT = " without "
_EXAMPLE = '[vllm]\n"module" = "file:line"'


@dataclass(frozen=True)
class Entry:
    """One accepted module.

    Attributes:
        module: Its full name.
        culprit: The line that touched when the entry was written, ``file:line``; information only.
        without: The library that was hidden, or "".

    """

    module: str
    culprit: str
    without: str = ""

    @property
    def table(self) -> str:
        """The name of its table in the file: the top-level package, and what was hidden."""
        package = self.module.partition(".")[0]
        return f"{package}{_WITHOUT}{self.without}" if self.without else package


class Baseline:
    """The accepted modules: at most one entry for each module and hidden library."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = {(entry.module, entry.without): entry for entry in entries}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Baseline) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"Baseline({list(self.entries)!r})"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of the file."""
        return tuple(
            sorted(self._entries.values(), key=lambda entry: (_table_key(entry), entry.module))
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str], update: str = UPDATE_OPTION) -> Baseline:
        """Read a file; ``update`` is the option that writes one.

        Raises:
            BaselineError: It is missing, cannot be read, or is no baseline.

        """
        file = BaselineFile.read(path, update, _EXAMPLE)
        return cls(_entry(file, row) for row in file.rows)

    @classmethod
    def from_plain(cls, data: Iterable[Iterable[str]]) -> Baseline:
        """Read what ``to_plain`` returned."""
        return cls(Entry(*each) for each in data)

    def to_plain(self) -> list[list[str]]:
        """Return the entries as lists of texts."""
        return [[entry.module, entry.culprit, entry.without] for entry in self.entries]

    def accepts(self, record: ImportRecord) -> bool:
        """Whether a module's touch is known.

        The culprit line plays no part: one that has moved is the same touch. A crash, a time limit
        or a failed import in which nothing touched is never accepted.
        """
        return record.verdict.touched and (record.module, record.without) in self._entries

    def stale(
        self,
        records: Iterable[ImportRecord],
        found: Mapping[str, Iterable[str]] | None = None,
    ) -> list[Entry]:
        """Return the entries to remove: their module is clean now, or there is no such module.

        Args:
            records: What was audited this time.
            found: For each package that was searched, all modules found in it, those that were
                deselected included. Entries of other packages are not judged by it.

        """
        clean = {
            (each.module, each.without)
            for each in records
            if each.verdict is ImportVerdict.CLEAN and not each.so_far
        }
        exists = {package: frozenset(modules) for package, modules in (found or {}).items()}
        return [
            entry
            for entry in self.entries
            if (entry.module, entry.without) in clean or _is_gone(entry.module, exists)
        ]

    def updated(
        self,
        records: Iterable[ImportRecord],
        found: Mapping[str, Iterable[str]] | None = None,
        base: str | None = None,
    ) -> Baseline:
        """Return today's baseline: touching modules added, stale entries removed, others kept.

        Kept are the entries of modules that were not audited this time, and of those about which
        nothing was learned (crashed, timed out, not importable, not observable, clean so far).

        Args:
            records: What was audited this time.
            found: As in ``stale``.
            base: The folder to which culprits' files are relative; None: the working directory.

        """
        records = list(records)
        stale = set(self.stale(records, found))
        kept = [entry for entry in self.entries if entry not in stale]
        touching = [entry_of(record, base) for record in records if record.verdict.touched]
        return Baseline([*kept, *touching])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, at once or not at all.

        Raises:
            BaselineError: It cannot be written.

        """
        write(path, self.text())

    def text(self) -> str:
        """Return the file's text: a table for each package, a line for each module."""
        rows = [Row(entry.table, entry.module, entry.culprit) for entry in self.entries]
        return text_of(rows, _HEADER)


def entry_of(record: ImportRecord, base: str | None = None) -> Entry:
    """Return the entry that accepts a record; ``base`` as in ``Baseline.updated``."""
    culprit = record.culprit
    where = "no Python stack"
    if culprit is not None:
        where = f"{short_path(culprit.filename, base)}:{culprit.lineno}"
    return Entry(record.module, where, record.without)


def _table_key(entry: Entry) -> tuple[str, str]:
    package = entry.module.partition(".")[0]
    return package, entry.without


def _is_gone(module: str, found: Mapping[str, frozenset[str]]) -> bool:
    """Whether a package that was searched should hold the module, and none of them does."""
    searched = [
        modules
        for package, modules in found.items()
        if module == package or module.startswith(f"{package}.")
    ]
    return bool(searched) and not any(module in modules for modules in searched)


def _entry(file: BaselineFile, row: Row) -> Entry:
    package, word, without = row.table.partition(_WITHOUT)
    if word and not without:
        raise file.wrong(row.table, "names no library after 'without'")
    if row.key.partition(".")[0] != package:
        raise file.wrong(row.key, f"is no module of {package!r}, in whose table it stands")
    return Entry(row.key, row.value, without)
