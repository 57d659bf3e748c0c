"""What forked children of a process write for it, as lines of a memory file.

A child that is forked within a phase of a test, by ``os.fork``, multiprocessing or ``run_forked``,
has no report to carry what it knows, and may end without ``atexit``: so it writes at once. The
memory file has no name, and nothing is left of it; it is found by way of its owner, as children may
close descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import io, os


class ChildLines:
    """The file of one process that runs tests, into which its forked children write."""

    def __init__(self) -> None:
        self._owner = 0
        """The process that made the file; 0: there is none."""
        self._fd = -1
        self._file: tuple[int, int] | None = None
        """What the descriptor belongs to: a test may close all that it finds."""
        self._read = 0

    def begin(self) -> None:
        """Make the file of this process, unless it is there.

        One of isolated tests is a fork of another that runs tests, and has reports of its own.
        """
        is_ours = self._owner == os.getpid() and self._size(self._fd) >= 0
        if not is_ours and hasattr(os, "memfd_create"):
            self._fd, self._read = os.memfd_create("cudafork-captures"), 0
            self._owner, self._file = os.getpid(), _identity(os.fstat(self._fd))

    def _size(self, fd: int) -> int:
        """Return how much the file holds; -1: the descriptor is that of another one, or of none."""
        try:
            state = os.fstat(fd)
        except OSError:
            return -1
        return state.st_size if _identity(state) == self._file else -1

    def close(self) -> None:
        """Let go of the file, in the process that made it."""
        if self._owner == os.getpid() and self._size(self._fd) >= 0:
            os.close(self._fd)
        self._owner = 0

    def is_child(self) -> bool:
        """Whether this process descends by fork from the one that made the file."""
        return self._owner not in (0, os.getpid())

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a line, in a child; nothing is written where nobody can read it any more."""
        line = _write_json(record)
        try:
            with io.open(f"/proc/{self._owner}/fd/{self._fd}", "ab", buffering=0) as file:
                if self._size(file.fileno()) >= 0:
                    file.write(f"{line}\n".encode())
        except OSError:
            return  # the process that ran the test is gone, and nobody asks

    def waits(self) -> bool:
        """Whether a child has written what was not read."""
        return self._owner == os.getpid() and self._size(self._fd) > self._read

    def read(self) -> Iterator[dict[str, Any]]:
        """Return what children have written since the last call, in the process that asks them."""
        if not self.waits():
            return iter(())
        text = os.pread(self._fd, self._size(self._fd) - self._read, self._read)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return (_read_json(line, None) for line in whole.decode().splitlines())


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


_write_json, _read_json = written_in_c.json_writer(), written_in_c.json_reader()
