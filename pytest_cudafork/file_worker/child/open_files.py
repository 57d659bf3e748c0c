"""Files that a program leaves open: what they hold back is written at its end, as by Python.

Python does so while it takes the interpreter apart, which a forked process does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    for one in (*text, *streams, *buffers):
        with contextlib.suppress(Exception):  # closed, or it cannot be written
            one.flush()
    return [*text, *buffers]


def write_held_back(inherited: Iterable[Any] = ()) -> None:
    """Write what open files hold back at the end of a process.

    Args:
        inherited: What ``flush_all`` returned in the process that it was forked from, whose heap
            was frozen: what is in there is not found here.

    """
    text, streams, buffers = _open_files()
    for one in inherited:
        with contextlib.suppress(Exception):
            one.flush()
    for one in text:  # each before what it writes to
        with contextlib.suppress(Exception):  # Python goes on as well
            one.flush()
    for one in streams:  # what compresses writes its end when it is closed
        with contextlib.suppress(Exception):
            one.close()
    for one in buffers:
        with contextlib.suppress(Exception):
            one.flush()


def _open_files() -> tuple[list[Any], list[Any], list[Any]]:
    """Return files of text, streams that are no files of ``io`` (as those of gzip), and buffers."""
    found: tuple[list[Any], list[Any], list[Any]] = [], [], []
    lists: dict[type, list[Any] | None] = {}
    for one in gc.get_objects():
        kind = type(one)
        if kind not in lists:
            lists[kind] = next((found[number] for number in _number_of(kind)), None)
        files = lists[kind]
        if files is not None:
            files.append(one)
    return found


def _number_of(kind: type) -> Iterator[int]:
    """Give which of these a class of files is; nothing for what is none, or holds nothing back."""
    if issubclass(kind, io.TextIOBase):
        yield 0
    elif issubclass(kind, _BUFFERS):
        yield 2
    elif issubclass(kind, io.BufferedIOBase) and not issubclass(kind, _NOTHING_HELD):
        yield 1
