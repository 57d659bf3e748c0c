"""Owns what a test leaves for the time after a crash: its output so far, and who it is.

Runs in the child and in the parent; it does not know why the output is wanted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_cudafork.compat import forked, pytest_internals
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.protocol import messages

_LONGEST_VALUE = 500


def identity(item: pytest.Item) -> tuple[str, ...]:
    """Return what names a test in any session over the same files: its file and the names below.

    The node id will not do: it depends on the directories given on the command line where the file
    lies outside the root directory, and plugins rewrite it.
    """
    names = [
        node.name
        for node in item.listchain()
        if not isinstance(node, pytest.Session | pytest.File) and not _is_directory(node)
    ]
    return (str(item.path), *names)


def parameters(item: pytest.Item) -> list[tuple[str, str]]:
    """Return the names and values of a test's parameters, as far as the values are plain data.

    Ids such as ``x0`` say nothing about the value: two processes may order a set differently.
    """
    callspec = getattr(item, "callspec", None)
    found = []
    for name, value in getattr(callspec, "params", {}).items():
        if _is_plain(value):
            found.append((str(name), repr(value)[:_LONGEST_VALUE]))
    return found


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str, bytes)


def name_of(item: pytest.Item) -> tuple[list[str], list[list[str]]]:
    """Return what finds a test in another session (see ``Finder.find``), as plain data."""
    return list(identity(item)), [list(pair) for pair in parameters(item)]


class Finder:
    """Finds the tests of a session by what names them in any session over the same files."""

    def __init__(self, items: list[pytest.Item], first: pytest.Item | None = None) -> None:
        """Take the tests; ``first`` is the one that is looked for most likely, and found fast."""
        self._items = items
        self._first = first
        self._by_name: dict[tuple[str, ...], pytest.Item] | None = None

    def find(self, names: list[str], wanted: list[list[str]]) -> pytest.Item | None:
        """Return the test with these names and parameters (see ``parameters``), or None.

        Where the name fits and the parameters do not, the test of the same function that has these
        parameters is meant.
        """
        if self._first is not None and identity(self._first) == tuple(names):
            return self._first
        item = self._index().get(tuple(names))
        values = [tuple(pair) for pair in wanted]
        if item is not None and (not values or parameters(item) == values):
            return item
        if not values or "[" not in names[-1]:
            return None
        function = (*names[:-1], names[-1].partition("[")[0] + "[")
        for other, candidate in self._index().items():
            same = other[:-1] == function[:-1] and other[-1].startswith(function[-1])
            if same and parameters(candidate) == values:
                return candidate
        return None

    def _index(self) -> dict[tuple[str, ...], pytest.Item]:
        if self._by_name is None:
            self._by_name = {}
            for item in self._items:
                self._by_name.setdefault(identity(item), item)
        return self._by_name


def _is_directory(node: Any) -> bool:
    directory = getattr(pytest, "Directory", None)  # pytest >= 8
    package = getattr(pytest, "Package", None)
    return isinstance(node, tuple(kind for kind in (directory, package) if kind is not None))


def share_capture(config: pytest.Config, channel: Channel) -> None:
    """Give the parent the files that hold this process's captured output, for after a crash.

    pytest empties them at the end of each phase, so they hold the output of the phase that crashed.
    With ``--capture=sys`` there are none, so the text is written to memory files as well.
    """
    streams = pytest_internals.captured_streams(config)
    if streams is None:
        return
    if streams[0] is None and forked.claim_of(config).every_test:
        # pytest-forked keeps the output of a crash with --capture=no, too
        channel.send_with_fds(messages.CaptureFiles(), [_mirror("stdout"), _mirror("stderr")])
        return
    fds = [_file_of(part) for part in streams]
    if all(fd >= 0 for fd in fds):
        channel.send_with_fds(messages.CaptureFiles(), fds)


def _mirror(name: str) -> int:
    """Let what is written to a stream of ``sys`` go to a memory file as well; return that."""
    fd = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)
    setattr(sys, name, _Mirror(getattr(sys, name), fd))
    return fd


class _Mirror:
    """A text stream that also writes to a file; everything else is the stream's."""

    def __init__(self, stream: Any, fd: int) -> None:
        self._stream = stream
        self._fd = fd

    def write(self, text: str) -> Any:
        os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _file_of(part: Any) -> int:
    """Return the descriptor of the file behind one captured stream, or -1."""
    in_memory = pytest_internals.memory_stream()
    file = getattr(part, "tmpfile", None)
    if type(file) is in_memory:
        part.tmpfile = file = _mirrored(in_memory)
        fd: int = file.mirror
        return fd
    try:
        return -1 if file is None else int(file.fileno())
    except (OSError, ValueError, AttributeError):
        return -1


def _mirrored(base: type) -> Any:
    """Return an in-memory text stream that also writes to a memory file, ``mirror``."""

    class Mirrored(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mirror = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)

        def write(self, text: str) -> int:
            os.write(self.mirror, text.encode("utf-8", "backslashreplace"))
            written: int = super().write(text)
            return written

        def truncate(self, size: int | None = None) -> int:
            os.ftruncate(self.mirror, 0)
            os.lseek(self.mirror, 0, os.SEEK_SET)
            kept: int = super().truncate(size)
            return kept

    return Mirrored()
