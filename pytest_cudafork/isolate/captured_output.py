"""What a test's process has read from its capture, kept in a memory file that its parent has, too.

From when pytest has read it until the report is there it is nowhere else: to make the report may
hang or kill, and what a test has written to the channel may make the report unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cudafork.compat.unpatched import contextlib, os, struct
from pytest_cudafork.process.protocol import frames

Section = tuple[str, str]
"""As in a report: what it is, and the text."""

_LENGTH = struct.Struct("<Q")
"""Before what is kept of a phase: how many bytes follow."""


class Kept:
    """The memory file of one process, on its side. A phase is added behind those before it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pytest-cudafork-captured", os.MFD_CLOEXEC)
        self._file = self._there()
        self._end = 0

    def begin(self) -> None:
        """Begin with a test: nothing is kept of the one before."""
        if self._end:
            self._end = 0
            with contextlib.suppress(OSError):
                if self._is_there():
                    os.ftruncate(self.fd, 0)

    def keep(self, phase: str, sections: Sequence[Section]) -> None:
        """Keep what was read in a phase."""
        data = frames.dumps(frames.plain([phase, list(sections)]))
        entry = _LENGTH.pack(len(data)) + data
        with contextlib.suppress(OSError):  # a test may have closed it, or limited sizes of files
            if self._is_there() and os.pwrite(self.fd, entry, self._end) == len(entry):
                self._end += len(entry)

    def _is_there(self) -> bool:
        """Whether the file is there, and not another that a test has opened in its place."""
        return self._there() == self._file

    def _there(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino


def kept(fd: int) -> list[tuple[str, list[Section]]]:
    """Return the phases and sections of the test that runs, as far as the file can be read."""
    found: list[tuple[str, list[Section]]] = []
    try:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        while data:
            (size,) = _LENGTH.unpack_from(data)
            phase, sections = frames.loads(data[_LENGTH.size : _LENGTH.size + size])
            found.append((str(phase), [(str(name), str(text)) for name, text in sections]))
            data = data[_LENGTH.size + size :]
    except (OSError, frames.FrameError, TypeError, ValueError, struct.error):
        pass  # the process was ended while it wrote, or a test wrote into it
    return found


def forget(fd: int) -> None:
    """Empty the file when its test is over: the next may die before it begins."""
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_size:
            os.ftruncate(fd, 0)
