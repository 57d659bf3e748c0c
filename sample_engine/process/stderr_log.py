"""What a core process last wrote on its stderr, kept where its death cannot take it away.

The core writes to its stderr as ever, and what Python writes there goes into a file in memory too;
so do the stacks that a crash or a signal brings. The front end reads that file once the core is
dead. What native code writes on its own is on the terminal only.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys

from sample_engine.process.memory_file import MemoryFile

__all__ = ["STACKS_SIGNAL", "StderrLog", "are_whole", "keep_stderr_log"]

# On this signal a core writes the stacks of all its threads, whatever they do.
STACKS_SIGNAL = signal.SIGUSR1
_MOST_BYTES = 1 << 18
_KEPT_BYTES = 1 << 14
_MOST_LINES = 30
_LINES_BEFORE = 5
# As faulthandler writes: a crash, a frame, and the frame in which the core's own stack begins.
_CRASH = "Fatal Python error"
_FRAME = "  File "
_LOOP = " in run_core"
_CUT = "  ..."  # a stack that is too deep is cut off there


class StderrLog(MemoryFile):
    """The file. It can be handed to a child process by every start method."""

    def size(self) -> int:
        """Return how much has been written; 0 once it is closed."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def tail(self) -> str:
        """Return the last lines; from the crash on if there was one. "" if nothing was written."""
        lines = self.since(max(0, self.size() - _KEPT_BYTES)).splitlines()
        crashes = [number for number, line in enumerate(lines) if line.startswith(_CRASH)]
        if crashes:
            before = max(0, crashes[-1] - _LINES_BEFORE)
            return "\n".join(lines[before : crashes[-1] + _MOST_LINES])
        return "\n".join(lines[-_MOST_LINES:])

    def since(self, start: int) -> str:
        """Return what was written from ``start`` on, without the frames below the core's loop."""
        text = self.written_since(start)
        found = []
        below = False
        for line in text.splitlines():
            below = below and line.startswith(_FRAME)
            if not below:
                found.append(line)
            below = below or (line.startswith(_FRAME) and line.endswith(_LOOP))
        return "\n".join(found).rstrip()

    def written_since(self, start: int) -> str:
        """Return all that was written from ``start`` on; "" once it is closed."""
        if self._fd < 0:
            return ""
        return os.pread(self._fd, _KEPT_BYTES, start).decode("utf-8", "replace")


def are_whole(stacks: str) -> bool:
    """Whether stacks of a core's threads have come to their end, which is the core's loop.

    The main thread's stack is the last one. It is written from the innermost frame outwards.
    """
    lines = stacks.splitlines(keepends=True)
    return any(line.endswith((f"{_LOOP}\n", f"{_CUT}\n")) for line in lines)


class _Tee(io.TextIOBase):
    """A stderr that writes to the real one, whatever Python put in its place, and to the file."""

    def __init__(self, fd: int) -> None:
        self._real = open(  # noqa: SIM115 - it lives as long as the process
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        self._fd = fd

    def write(self, text: str) -> int:
        """Write to both; an error of the terminal (gone, for instance) is not the core's."""
        data = text.encode("utf-8", "backslashreplace")
        try:
            self._real.write(text)
            self._real.flush()
        except OSError:
            pass  # what was written is kept in the file, which is what the front end shows
        if os.fstat(self._fd).st_size + len(data) > _MOST_BYTES:
            self._shorten()
        os.write(self._fd, data[-_MOST_BYTES:])
        return len(text)

    def _shorten(self) -> None:
        kept = os.pread(self._fd, _KEPT_BYTES, max(0, os.fstat(self._fd).st_size - _KEPT_BYTES))
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, kept)

    def flush(self) -> None:
        """Nothing waits here."""

    def fileno(self) -> int:
        """Return the real stderr's."""
        return 2

    def isatty(self) -> bool:
        """Whether the real one is a terminal."""
        return os.isatty(2)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The real one's."""
        return "utf-8"


def keep_stderr_log(log: StderrLog) -> None:
    """In the core's process: from now on write stderr, crashes and asked-for stacks there too."""
    fd = log.fileno()
    sys.stderr = _Tee(fd)
    faulthandler.enable(file=fd)
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True, chain=False)
