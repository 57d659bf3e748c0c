"""What a test's process has read from its capture, kept in a memory file that its parent has, too.

From when pytest has read it until the report is there it is nowhere else: to make the report may
hang or kill, and what a test has written to the channel may make the report unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.process.protocol import frames

Section = tuple[str, str]
"""As in a report: what it is, and the text."""


class Kept:
    """The memory file of one process, on its side."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pytest-cudafork-captured", os.MFD_CLOEXEC)
        self._file = os.fstat(self.fd)[1:3]
        self._sections: list[tuple[str, list[Section]]] = []

    def begin(self) -> None:
        """Begin with a test: nothing is kept of the one before."""
        if self._sections:
            self._sections.clear()
            self._write()

    def keep(self, phase: str, sections: Sequence[Section]) -> None:
        """Keep what was read in a phase."""
        self._sections.append((phase, list(sections)))
        self._write()

    def _write(self) -> None:
        """Write all; nothing into what a test has put in the file's place, or beyond its limits."""
        data = frames.dumps(frames.plain(self._sections)) if self._sections else b""
        with contextlib.suppress(OSError):
            if os.fstat(self.fd)[1:3] == self._file:
                os.ftruncate(self.fd, 0)
                os.pwrite(self.fd, data, 0)


def kept(fd: int) -> list[tuple[str, list[Section]]]:
    """Return the phases and sections of the test that runs; [] where the file cannot be read."""
    try:
        found = frames.loads(os.pread(fd, os.fstat(fd).st_size, 0))
        return [
            (str(phase), [(str(name), str(text)) for name, text in sections])
            for phase, sections in found
        ]
    except (OSError, frames.FrameError, TypeError, ValueError):
        return []


def forget(fd: int) -> None:
    """Empty the file when its test is over: the next may die before it begins."""
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_size:
            os.ftruncate(fd, 0)
