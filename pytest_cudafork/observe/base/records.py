"""What a line of the ledger may say: records are checked when they are read, and only then used.

Any process of a session may write into the file, and a user may name any file as the ledger. What
is no record of the right form is a lost record, never an error of the program that reads it.
"""

from __future__ import annotations

from typing import Any

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import os

Record = dict[str, Any]

LET_THROUGH = ("allowed", "accepted", "watched")
"""Verdicts of forks of an initialized process that are no errors by themselves."""
_LONGEST = 1 << 22
"""Bytes of a line beyond which it is not looked at: a stack has a hundred frames."""
_MOST_BITS = 63
_NEEDED = frozenset(("k", "id", "pid"))
_TEXTS = frozenset(
    (
        *("k", "id", "owner", "test", "phase", "witness", "entry", "library", "gil", "api"),
        *("verdict", "rule", "state", "fork", "level", "device", "filename", "function"),
        *("culprit", "at", "method"),
    )
)
_NUMBERS = frozenset(("t", "pid", "tid", "ppid", "parent", "line"))
_FLAGS = frozenset(("poisoned", "again", "by_name"))
_LISTS_OF_TEXTS = frozenset(("libraries", "limits", "argv", "ids"))


def decode(line: bytes) -> Record | None:
    """Read one line; None for one that is no record."""
    if len(line) > _LONGEST:
        return None
    try:
        record = _read(line.decode("utf-8", "surrogatepass").strip(), None)
    except (ValueError, StopIteration, RecursionError):
        return None
    if not isinstance(record, dict) or not record.keys() >= _NEEDED:
        return None
    return record if all(_is_right(key, value) for key, value in record.items()) else None


def file_of_stderr() -> str:
    """Return what tells the file behind descriptor 2 from others here: a record's ``printed``.

    "" where that descriptor is closed.
    """
    try:
        status = os.fstat(2)
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_read = written_in_c.json_reader(_no_constant)


def _is_right(key: str, value: object) -> bool:
    """Whether a value has the type that its key asks for; unknown keys may hold anything."""
    if key in _TEXTS:
        return isinstance(value, str)
    if key in _NUMBERS:
        return _is_number(value) or (value is None and key == "parent")
    if key in _FLAGS:
        return isinstance(value, bool)
    if key in _LISTS_OF_TEXTS:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if key == "stack":
        return isinstance(value, list) and all(_is_frame(frame) for frame in value)
    return True


def _is_number(value: object) -> bool:
    return type(value) is int and value.bit_length() <= _MOST_BITS


def _is_frame(frame: object) -> bool:
    """Whether it is [filename, line, name] or [filename, line, name, flags]."""
    if not isinstance(frame, list) or len(frame) not in (3, 4):
        return False
    filename, line, name, *flags = frame
    texts = isinstance(filename, str) and isinstance(name, str)
    return texts and all(number is None or _is_number(number) for number in (line, *flags))
