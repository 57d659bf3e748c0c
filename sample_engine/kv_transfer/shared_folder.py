"""A folder in shared memory that lives as long as somebody uses it.

Whoever uses it holds its file ``users`` locked (shared). The last one to leave removes the folder.
Where that one is killed, the janitor does, a small process that the first user starts and that
waits for the lock; and where that is killed, too, whoever opens any such folder next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sample_engine.kv_transfer import janitor
from sample_engine.kv_transfer.store import StoreError

__all__ = ["Patience", "SharedFolder", "folder_path"]

_PREFIX = "sample_engine-kv"
_JOIN_SECONDS = 10.0
_LEAVE_SECONDS = 5.0
_START_SECONDS = 10.0
_PAUSE = 0.002
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_path(base: str, name: str) -> Path:
    """Where the folder of a name is: users of the machine do not share any."""
    return Path(base) / f"{_PREFIX}-{os.getuid()}-{name}"


class Patience:
    """How long a call may wait for locks, however many times it has to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self.left = seconds


class SharedFolder:
    """The folder, opened. ``fd`` is the folder itself, for calls that take ``dir_fd``.

    Raises :class:`StoreError` where it cannot be had: it is another user's, the file system is
    full, or whoever removes an earlier one does not come to an end.
    """

    def __init__(self, base: str, name: str) -> None:
        self.path = folder_path(base, name)
        self._owner = os.getpid()
        self._users = -1
        self.fd = -1
        self._janitor = -1
        try:
            _remove_abandoned(Path(base))
            self._users = self._join(time.monotonic() + _JOIN_SECONDS)
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._lock = os.open("lock", _OPEN, 0o600, dir_fd=self.fd)
            self._janitor = os.open("janitor", _OPEN, 0o600, dir_fd=self.fd)
            self._start_janitor()
        except (OSError, subprocess.SubprocessError) as error:
            self._close_files()
            raise StoreError(f"{str(self.path)!r} cannot be used: {error}") from None
        except BaseException:
            self._close_files()
            raise

    @property
    def is_there(self) -> bool:
        """Whether it is open, and nobody has removed or moved it."""
        return self._users >= 0 and janitor.is_the_same(self._users, str(self.path))

    @contextlib.contextmanager
    def locked(self, patience: Patience) -> Iterator[None]:
        """Be the only one to change the folder. Raises :class:`StoreError` if it takes too long.

        The kernel lets go of a dead user's lock; it takes long where one is stopped.
        """
        began = time.monotonic()
        taken = _take(self._lock, fcntl.LOCK_EX, began + patience.left)
        patience.left -= time.monotonic() - began
        if not taken:
            raise StoreError(
                f"{str(self.path)!r} was locked by others for {patience.seconds:g} seconds: a "
                "process that uses it may be stopped"
            )
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave the folder; the last one removes it. In a forked child it is left alone."""
        if self._users < 0 or os.getpid() != self._owner:
            return
        deadline = time.monotonic() + _LEAVE_SECONDS
        try:
            removed = self._remove_as_the_last(deadline)
            os.close(self._users)
            self._users = -1
            if removed:  # the janitor sees it now, and ends
                _take(self._janitor, fcntl.LOCK_EX, deadline)
        finally:
            self._close_files()

    def _join(self, deadline: float) -> int:
        """Make the folder if it is not there, and be one of its users."""
        while time.monotonic() < deadline:
            self._make()
            try:
                users = os.open(self.path / janitor.USERS, _OPEN, 0o600)
            except FileNotFoundError:
                continue  # removed between the two lines
            if not _take(users, fcntl.LOCK_SH, deadline):
                os.close(users)
                break
            if janitor.is_the_same(users, str(self.path)):
                return users
            os.close(users)
        raise StoreError(
            f"{str(self.path)!r} has been locked for {_JOIN_SECONDS:g} seconds by a process that "
            "removes it and may be stopped: remove it by hand, or choose another name"
        )

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            return
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found = self.path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise StoreError(
                    f"{str(self.path)!r} is no folder of this user: choose another name"
                )

    def _start_janitor(self) -> None:
        """Start the janitor unless it runs. It takes over the lock that says so."""
        own = os.open("janitor", _OPEN, 0o600, dir_fd=self.fd)
        try:
            if not _take(own, fcntl.LOCK_EX, 0.0):
                return
            # Nothing of this program goes with it: no environment, no terminal, no open file.
            subprocess.run(
                [sys.executable, "-I", "-S", janitor.__file__, str(self.path)],
                pass_fds=(own,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
                timeout=_START_SECONDS,
                check=True,
            )
        finally:
            os.close(own)

    def _remove_as_the_last(self, deadline: float) -> bool:
        """Remove the folder if nobody else uses it; whether it is gone."""
        while True:
            if _take(self._users, fcntl.LOCK_EX, 0.0):
                if janitor.is_the_same(self._users, str(self.path)):
                    janitor.remove(str(self.path))
                return True
            if _take(self._users, fcntl.LOCK_SH, 0.0) or time.monotonic() > deadline:
                return False  # others use it
            time.sleep(_PAUSE)  # somebody removes it

    def _close_files(self) -> None:
        for name in ("_users", "fd", "_lock", "_janitor"):
            fd = getattr(self, name, -1)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)


def _take(fd: int, how: int, deadline: float) -> bool:
    """Lock a file, at the latest at the deadline; False: others hold it."""
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        else:
            return True


def _remove_abandoned(base: Path) -> None:
    """Remove the folders of this user that nobody uses: all who did, janitors too, were killed."""
    for path in base.glob(f"{_PREFIX}-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            users = os.open(path / janitor.USERS, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _take(users, fcntl.LOCK_EX, 0.0) and janitor.is_the_same(users, str(path)):
                    janitor.remove(str(path))
            finally:
                os.close(users)
