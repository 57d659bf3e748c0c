"""A process that removes a shared folder once its last user is gone, however that ended.

Run as a file, with nothing but the standard library: ``janitor.py FOLDER``. Users hold the folder's
file ``users`` locked (shared); the kernel lets go of a lock with its process, killed ones included.
This process waits for the lock without computing anything, and ends with the folder. That it runs
is itself a lock, on the file ``janitor``, which it inherits from who starts it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys

__all__ = ["USERS", "is_the_same", "open_users", "remove", "wait_and_remove"]

USERS = "users"


def open_users(folder: str) -> int | None:
    """Open the folder's ``users``; None: the folder is gone already."""
    try:
        return os.open(os.path.join(folder, USERS), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def wait_and_remove(users: int, folder: str) -> None:
    """Wait for the end of all users, and remove what they leave."""
    fcntl.flock(users, fcntl.LOCK_EX)
    if is_the_same(users, folder):
        remove(folder)


def is_the_same(users: int, folder: str) -> bool:
    """Whether an open file is still the folder's ``users``: it may have been removed meanwhile."""
    try:
        there = os.stat(os.path.join(folder, USERS), follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(users), there)


def remove(folder: str) -> None:
    """Remove a folder that nobody uses. The caller has its ``users`` locked for itself.

    ``users`` goes last: from then on somebody may make a new one, and the folder is theirs.
    """
    for name in os.listdir(folder):
        if name != USERS:
            with contextlib.suppress(FileNotFoundError):
                _remove_one(os.path.join(folder, name))
    os.unlink(os.path.join(folder, USERS))
    with contextlib.suppress(OSError):  # somebody has begun anew in it
        os.rmdir(folder)


def _remove_one(path: str) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:  # somebody else's work
        import shutil  # late: it is hardly ever needed, and takes long

        shutil.rmtree(path)


def _as_a_daemon() -> None:
    """Go on in a child that nobody has to wait for."""
    if os.fork():
        os._exit(0)


if __name__ == "__main__":
    # Before whoever starts it goes on: its own folder, and not one that is made in its place.
    opened = open_users(sys.argv[1])
    if opened is not None:
        _as_a_daemon()
        wait_and_remove(opened, sys.argv[1])
