"""Files that a program leaves open: what they hold back is written at its end, as by Python.

Python does so while it takes the interpreter apart, which a forked process does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, gc, io

_BUFFERS = (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
_NOTHING_HELD = (io.BufferedReader, io.BytesIO)


def flush_all() -> list[Any]:
    """Write what open files hold back, so that no child writes it.

    For a process that is to be forked, before its heap is frozen. Returns the files that a child
    may flush.
    """
    text, streams, buffers = _open_files()
    _call("flush", [*text, *streams, *buffers])
    return [*text, *buffers]


def write_held_back(inherited: Iterable[Any] = ()) -> None:
    """Write what open files hold back at the end of a process.

    Args:
        inherited: What ``flush_all`` returned in the process that it was forked from, whose heap
            was frozen: what is in there is not found here.

    """
    text, streams, buffers = _open_files()
    _call("flush", [*inherited, *text])  # each before what it writes to
    _call("close", streams)  # what compresses writes its end then
    _call("flush", buffers)


def _call(method: str, files: Iterable[Any]) -> None:
    for one in files:
        with contextlib.suppress(Exception):  # closed, or it cannot be written: Python goes on, too
            getattr(one, method)()


def _open_files() -> tuple[list[Any], list[Any], list[Any]]:
    """Return files of text, streams that are no files of ``io`` (as those of gzip), and buffers."""
    found: tuple[list[Any], list[Any], list[Any]] = [], [], []
    numbers: dict[type, int | None] = {}
    for one in gc.get_objects():
        kind = type(one)
        if kind not in numbers:
            numbers[kind] = _number_of(kind)
        number = numbers[kind]
        if number is not None:
            found[number].append(one)
    return found


def _number_of(kind: type) -> int | None:
    """Return which of these a class of files is; None for what is none, or holds nothing back."""
    if issubclass(kind, io.TextIOBase):
        return 0
    if issubclass(kind, _BUFFERS):
        return 2
    if issubclass(kind, io.BufferedIOBase) and not issubclass(kind, _NOTHING_HELD):
        return 1
    return None
