"""Memory that two processes share, by which one of them leaves the other a last message.

Unlike a descriptor it cannot be closed by code that closes
all there are, nor is its number given to a file that the code opens next.
"""

from __future__ import annotations

import mmap

from pytest_cudafork.compat.unpatched import os

_LENGTH_BYTES = 8
_BYTES = 32 << 20
"""Address space; only what is written takes memory."""


class SharedMailbox:
    """A message that is written once, whole or not at all."""

    def __init__(self, fd: int = -1) -> None:
        """Map it.

        Args:
            fd: A memory file from ``mailbox_file``, for a process that is started by exec; -1: it
                is for processes forked from this one.

        """
        self._memory = mmap.mmap(fd, _BYTES)

    def write(self, message: bytes) -> None:
        """Leave the message; one that is far too long is not left."""
        if len(message) <= _BYTES - _LENGTH_BYTES:
            self._memory[_LENGTH_BYTES : _LENGTH_BYTES + len(message)] = message
            self._memory[:_LENGTH_BYTES] = len(message).to_bytes(_LENGTH_BYTES, "little")

    def read(self) -> bytes:
        """Return the message; b"" if none was left."""
        length = int.from_bytes(self._memory[:_LENGTH_BYTES], "little")
        return self._memory[_LENGTH_BYTES : _LENGTH_BYTES + length]

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


def mailbox_file() -> int:
    """Return a memory file for a mailbox that a process started by exec writes."""
    fd = os.memfd_create("pytest-cudafork-mailbox", os.MFD_CLOEXEC)
    os.ftruncate(fd, _BYTES)
    return fd


def read_mailbox(fd: int) -> bytes:
    """Return what is in a memory file into which a message was copied; b"" if nothing is."""
    return os.pread(fd, os.fstat(fd).st_size, 0)
