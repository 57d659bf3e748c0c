"""What a program writes: read as it comes, and kept as far as a reader can use it.

A program that floods its output is neither slowed down nor kept in memory: of each stream the
beginning and the end are kept, and how much lay between.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, os

MOST_BYTES = 1 << 20
"""How much is kept of the beginning of a stream, and how much of its end."""
_CHUNK = 1 << 16


class KeptOutput:
    """One stream of a program; ``write_fd`` is for the program."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Make a pipe; ``most`` is how many bytes of beginning and end each are kept."""
        self._most = most
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """How many bytes were written."""
        self._fd, self.write_fd = os.pipe()
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """Return the descriptor to read from; -1 when nobody can write any more."""
        return self._fd

    def take(self) -> None:
        """Read once what there is."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            os.close(self._fd)
            self._fd = -1
            return
        self.total += len(data)
        room = self._most - len(self._head)
        self._head += data[: max(0, room)]
        self._tail += data[max(0, room) :]
        del self._tail[: -self._most or None]

    def take_rest(self) -> None:
        """Read what is left in the pipe; whoever could fill it again has ended."""
        before = -1
        while self._fd >= 0 and before != self.total:
            before = self.total
            self.take()

    def given_away(self) -> None:
        """Close the program's end here, when the program has it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Close what is still open."""
        self.given_away()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    @property
    def left_out(self) -> int:
        """How many bytes between beginning and end were not kept."""
        return self.total - len(self._head) - len(self._tail)

    @property
    def data(self) -> bytes:
        """The bytes, with a line in the place of what was not kept."""
        if not self.left_out:
            return bytes(self._head + self._tail)
        gap = f"\n... {self.left_out} bytes are left out here ...\n"
        return bytes(self._head) + gap.encode() + bytes(self._tail)
