"""Lock files, which the kernel frees when their process dies: taking one, and who keeps it.

The library filelock takes them. It waits by asking again and again, so who asks has as good a
chance as the others, whoever came first: a lock that many want must be kept for moments only.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL_SECONDS = 0.003
_LOCKS = "/proc/locks"


class KeptTooLong(RuntimeError):
    """Another process has kept a lock that is kept for moments only; the message names it."""


def new_lock(path: str) -> BaseFileLock:
    """Return the lock of a file, not taken yet."""
    lock: BaseFileLock = _lock_class()(path, thread_local=False)
    lock.owner = os.getpid()  # type: ignore[attr-defined]
    return lock


@functools.cache
def _lock_class() -> Any:
    from filelock import FileLock

    class OwnLock(FileLock):
        """A lock that a forked child shares and does not free.

        filelock before 3.30 frees it where the child ends, or the object does there: it was free
        for all processes then, while the one that had taken it went on.
        """

        owner = 0
        """The process that made it."""

        def release(self, force: bool = False) -> None:
            """Free it, in the process that made it."""
            if os.getpid() == self.owner:
                super().release(force)

    return OwnLock


def try_lock(lock: BaseFileLock) -> bool:
    """Take a lock if it is free; whether it was."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def is_void(path: str) -> bool:
    """Whether nobody has the lock of a file; one that is gone just now is void, too."""
    if not os.path.exists(path):
        return True
    lock = new_lock(path)
    if not try_lock(lock):
        return False
    lock.release()
    return True


@contextlib.contextmanager
def kept(path: str, limit: float) -> Iterator[None]:
    """Keep a lock for the length of the block.

    Args:
        path: its file.
        limit: how long others may keep it, in seconds.

    Raises:
        KeptTooLong: somebody has kept it for longer.

    """
    from filelock import Timeout

    lock = new_lock(path)
    try:
        lock.acquire(timeout=limit, poll_interval=_POLL_SECONDS)
    except Timeout:
        raise KeptTooLong(
            f"{_named(keeper_of(path))} has kept {path!r} for {limit:g} s, which is a matter of "
            "milliseconds: if it is stopped, let it go on or end it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def keeper_of(path: str, locks: str = _LOCKS) -> int:
    """Return the process that has the lock of a file; 0 if the kernel does not tell.

    Args:
        path: the file.
        locks: where the kernel lists its locks, as proc_locks(5) says.

    """
    try:
        inode = os.stat(path).st_ino
        with open(locks, encoding="ascii", errors="replace") as file:
            for line in file:
                fields = line.split()  # 1: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF
                if fields[1:2] == ["FLOCK"] and fields[5].rpartition(":")[2] == str(inode):
                    return max(0, int(fields[4]))
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _named(pid: int) -> str:
    if not pid:
        return "another process"
    from pytest_cudafork.gpus.memory import command_of

    return f"process {pid} ({command_of(pid)})"
