"""The baseline: a TOML file that accepts the modules which initialize CUDA today."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.words import short_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
_AT_LINE = re.compile(r"at line (\d+)")


class BaselineError(ValueError):
    """The baseline cannot be read or written; recoverable, the message says what to do."""


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
        shown = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise BaselineError(
                f"{shown}: there is no such baseline. Create it with {update}."
            ) from None
        except OSError as error:
            raise BaselineError(f"{shown}: cannot be read: {error.strerror}.") from error
        return cls(_parse(data, shown))

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
        # A link stays a link: what it leads to is replaced.
        target = os.path.realpath(path)
        try:
            _replace(target, self.text().encode("utf-8"))
        except OSError as error:
            raise BaselineError(
                f"{os.fspath(path)}: cannot be written: {error.strerror}."
            ) from error

    def text(self) -> str:
        """Return the file's text: a table for each package, a line for each module."""
        tables: dict[str, dict[str, str]] = {}
        for entry in self.entries:
            tables.setdefault(entry.table, {})[entry.module] = _encodable(entry.culprit)
        body = tomli_w.dumps(tables)
        return f"{_HEADER}\n{body}" if body else _HEADER


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


def _parse(data: bytes, path: str) -> list[Entry]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BaselineError(f"{path}:{line}: is not UTF-8.") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise BaselineError(f"{path}:{line}: is not TOML: {error}.") from error
    entries: list[Entry] = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise _wrong(path, text, name, "stands outside a table such as [vllm]")
        entries += [_entry(path, text, name, key, value) for key, value in table.items()]
    return entries


def _entry(path: str, text: str, table: str, module: str, culprit: Any) -> Entry:
    package, word, without = table.partition(_WITHOUT)
    if word and not without:
        raise _wrong(path, text, table, "names no library after 'without'")
    if not isinstance(culprit, str):
        raise _wrong(path, text, module, 'wants text: "module" = "file:line"')
    if module.partition(".")[0] != package:
        raise _wrong(path, text, module, f"is no module of {package!r}, in whose table it stands")
    return Entry(module, culprit, without)


def _wrong(path: str, text: str, key: str, what: str) -> BaselineError:
    """Return the error about a key, with the first line that bears it."""
    quoted = re.escape(key)
    shown = re.compile(rf"""\s*\[*\s*("{quoted}"|'{quoted}'|{quoted})\s*[]=.]""")
    lines = text.split("\n")
    for bears in (shown.match, lambda line: key in line):
        for number, line in enumerate(lines, 1):
            if bears(line):
                return BaselineError(f"{path}:{number}: {key!r} {what}.")
    return BaselineError(f"{path}:1: {key!r} {what}.")  # written with escapes


def _encodable(text: str) -> str:
    """Return text that UTF-8 can hold; a file name may be any bytes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _replace(target: str, data: bytes) -> None:
    """Put a file in the place of another that nobody ever sees half written."""
    folder, name = os.path.split(target)
    fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, _mode_of(target))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _mode_of(target: str) -> int:
    """Return the permissions of a file, or those that a new one gets (mkstemp's are private)."""
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask
