"""The file that every baseline is: TOML with a table for each group, and a line for each entry.

What a table stands for, and what is accepted by an entry, its user says. Entries are sorted, so
that a change of one entry is a change of one line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pytest_cudafork.documents.writing import replace

_AT_LINE = re.compile(r"at line (\d+)")
_LOCK_SECONDS = 10.0
"""How long other sessions may change a file, which takes them milliseconds."""
_POLL_SECONDS = 0.005


class BaselineError(ValueError):
    """The baseline cannot be read or written; recoverable, the message says what to do."""


class Row(NamedTuple):
    """One line of the file: the table it stands in, its key, and its value."""

    table: str
    key: str
    value: str


class BaselineFile:
    """What a file held when it was read, with the errors about it, which name lines."""

    def __init__(self, path: str, text: str, rows: tuple[Row, ...]) -> None:
        self.path = path
        self.rows = rows
        self._text = text

    @classmethod
    def read(cls, path: str | os.PathLike[str], update: str, example: str) -> BaselineFile:
        """Read a file.

        Args:
            path: The file.
            update: The option that writes one, for the error.
            example: A table and an entry as they should be, as in ``[vllm]`` and
                ``"module" = "file:line"``, on two lines, for the error.

        Raises:
            BaselineError: It is missing, cannot be read, or is no baseline.

        """
        shown = os.fspath(path)
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise BaselineError(f"{shown}: is a pipe or a device, and no plain file.")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            if os.path.islink(path):  # an update leaves it alone, too: a disk may be missing
                raise BaselineError(
                    f"{shown}: is a link to {os.path.realpath(path)}, and there is nothing. Bring "
                    "that file back, let the link lead to another, or remove the link."
                ) from None
            raise BaselineError(
                f"{shown}: there is no such baseline. Create it with {update}."
            ) from None
        except OSError as error:
            raise BaselineError(f"{shown}: cannot be read: {error.strerror}.") from error
        return cls._parsed(data, shown, example)

    @classmethod
    def _parsed(cls, data: bytes, path: str, example: str) -> BaselineFile:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise BaselineError(f"{path}:{line}: is not UTF-8.") from error
        # Late, as in ``text_of``: a session with the check and without a baseline reads none.
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = _AT_LINE.search(str(error))
            line = int(found[1]) if found else text.count("\n") + 1
            raise BaselineError(f"{path}:{line}: is not TOML: {error}.") from error
        except (ValueError, RecursionError) as error:  # a number or a nesting without end
            raise BaselineError(f"{path}: is no baseline: {error}.") from None
        table_words, _, entry_words = example.partition("\n")
        rows: list[Row] = []
        made = cls(path, text, ())
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise made.wrong(name, f"stands outside a table such as {table_words}")
            for key, value in table.items():
                if not isinstance(value, str):
                    raise made.wrong(key, f"wants text: {entry_words}")
                rows.append(Row(name, key, value))
        return cls(path, text, tuple(rows))

    def wrong(self, key: str, what: str) -> BaselineError:
        """Return the error about a key or a table, with the first line that bears it."""
        quoted = re.escape(key)
        shown = re.compile(rf"""\s*\[*\s*("{quoted}"|'{quoted}'|{quoted})\s*[]=.]""")
        lines = self._text.split("\n")
        for bears in (shown.match, lambda line: key in line):
            for number, line in enumerate(lines, 1):
                if bears(line):
                    return BaselineError(f"{self.path}:{number}: {key!r} {what}.")
        return BaselineError(f"{self.path}:1: {key!r} {what}.")  # written with escapes


def text_of(rows: Iterable[Row], header: str) -> str:
    """Return the text of a file: its header, and the rows in the order in which they come."""
    import tomli_w

    tables: dict[str, dict[str, str]] = {}
    for row in rows:
        tables.setdefault(_encodable(row.table), {})[_encodable(row.key)] = _encodable(row.value)
    body = tomli_w.dumps(tables)
    return f"{header}\n{body}" if body else header


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, at once or not at all.

    Raises:
        BaselineError: It cannot be written.

    """
    try:
        replace(path, text)
    except OSError as error:
        raise BaselineError(f"{os.fspath(path)}: cannot be written: {error.strerror}.") from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that the file can be written, as far as that is known before.

    Nothing shows but by trying: permissions do not tell of root, or of a file system that is full.

    Raises:
        BaselineError: It cannot be written; the message says why.

    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    shown = f"{os.fspath(path)}: cannot be written"
    if os.path.isdir(target):
        raise BaselineError(f"{shown}: it is a folder.")
    if not os.path.isdir(folder):
        raise BaselineError(f"{shown}: there is no folder {folder!r}.")
    try:
        tempfile.NamedTemporaryFile(prefix=f".{name}.", dir=folder).close()
    except OSError as error:
        raise BaselineError(f"{shown}: no file can be made beside it: {error.strerror}.") from error


@contextlib.contextmanager
def alone(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep the other sessions of this machine from changing the file meanwhile.

    The folder is locked, so no further file is needed; where that cannot be done (no such folder, a
    file system without locks) nothing is. Others have it for moments: who keeps it for longer is no
    such session, and may be what has started this one (``flock . pytest``).
    """
    fd = -1
    try:
        with contextlib.suppress(OSError):
            folder = os.path.dirname(os.path.realpath(path))
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _lock(fd)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int) -> None:
    """Lock a folder; an ``OSError`` if that cannot be done, or not in time."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def _encodable(text: str) -> str:
    """Return text that UTF-8 can hold; a file name may be any bytes."""
    return text.encode("utf-8", "replace").decode("utf-8")
