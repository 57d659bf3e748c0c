"""A file in memory that processes share: it has no name on a disk, and goes with the last one."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import reduction
from typing import Any, TypeVar

__all__ = ["MemoryFile"]

_File = TypeVar("_File", bound="MemoryFile")


class MemoryFile:
    """The file. It can be handed to a child process by every start method."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = _new_file() if fd is None else fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_duplicate, (type(self), reduction.DupFd(self._fd))

    def fileno(self) -> int:
        """Return the descriptor; -1 once it is closed."""
        return self._fd

    def path(self) -> str:
        """Return a path under which this process may open the file again, as long as it is open."""
        return f"/proc/self/fd/{self._fd}"

    def close(self) -> None:
        """Give the descriptor back; twice does no harm."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _from_duplicate(kind: type[_File], duplicate: Any) -> _File:
    return kind(duplicate.detach())


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sample_engine", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
