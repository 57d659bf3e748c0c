"""Blocks in the shared memory of one host: a file each, in a folder that goes with its last user.

A block is written to a file without a name, which gets one when it is complete (``O_TMPFILE`` and
``link``): of a writer that dies the kernel takes back all that it had written. Readers need no
lock. The longest unused blocks are removed when the size that is set is reached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sample_engine.kv_transfer.frame import HEADER_BYTES, header_of, why_not_whole
from sample_engine.kv_transfer.shared_folder import Patience, SharedFolder
from sample_engine.kv_transfer.store import BlockStore, StoreError

__all__ = ["SharedMemoryStore"]

_LOCK_SECONDS = 1.0
_KEPT = 0.9  # of the size that is set, after an eviction: so it is not needed for every block
_BLOCK = "block-"
_SIZE = "size"


class SharedMemoryStore(BlockStore):
    """Blocks of at most ``max_bytes`` together. Raises :class:`StoreError` if it cannot be had."""

    def __init__(self, directory: str, name: str, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.evicted = 0
        self._place = directory, name
        self._open()

    def get(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        """Fetch blocks, up to the first that is not there as a whole."""
        now = time.time_ns()
        with self._told("cannot be read"):
            self._open_anew_if_gone()
            for index, (key, row) in enumerate(zip(keys, rows, strict=True)):
                # A block is of no use without those before it: it counts as older, and goes first.
                if not self._read(key, row, now - index):
                    return index
        return len(keys)

    def put(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        """Store blocks that are not there. One that is larger than all may be is left out."""
        now = time.time_ns()
        stored, patience = 0, Patience(_LOCK_SECONDS)
        with self._told("takes no block"):
            self._open_anew_if_gone()
            for index, (key, row) in enumerate(zip(keys, rows, strict=True)):
                if HEADER_BYTES + len(row) > self.max_bytes or self._is_there(key):
                    continue
                stored += self._write(key, row, now - index, patience)
        return stored

    def close(self) -> None:
        """Leave the folder; with the last user it goes."""
        self._folder.close()

    def describe(self) -> str:
        """The folder."""
        return f"the shared memory {str(self._folder.path)!r}"

    def metrics(self) -> dict[str, Any]:
        """What this user counted, and how large the blocks of all are together."""
        size = None
        with contextlib.suppress(OSError):
            size = self._size()
        return {**super().metrics(), "evicted_blocks": self.evicted, "store_bytes": size}

    def _open(self) -> None:
        self._folder = SharedFolder(*self._place)
        try:
            with self._told("cannot be used"), self._folder.locked(Patience(_LOCK_SECONDS)):
                self._write_size(sum(size for _, size, _ in self._found()))
        except BaseException:
            self.close()
            raise

    def _open_anew_if_gone(self) -> None:
        """Begin anew where somebody has removed the folder, as a clean-up of the machine may."""
        if not self._folder.is_there:
            self.close()
            self._open()

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.describe()} {what}: {error}") from None

    def _is_there(self, key: str) -> bool:
        try:
            os.stat(_BLOCK + key, dir_fd=self._folder.fd)
        except FileNotFoundError:
            return False
        return True

    def _read(self, key: str, row: memoryview, used: int) -> bool:
        try:
            fd = self._opened(_BLOCK + key, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(fd)
            header = bytearray(HEADER_BYTES)
            found = os.readv(fd, [header, row])
            more = status.st_size - HEADER_BYTES
            if found != HEADER_BYTES + len(row) or more != len(row):
                why: str | None = f"it has {more} bytes instead of {len(row)}"
            else:
                why = why_not_whole(key, header, row)
            if why is None:
                os.utime(fd, ns=(used, used))
                return True
        finally:
            os.close(fd)
        self.damaged += 1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_BLOCK + key, dir_fd=self._folder.fd)
        return False

    def _write(self, key: str, row: memoryview, used: int, patience: Patience) -> bool:
        """Store a block; whether nobody else did meanwhile. Raises :class:`OSError`."""
        size = HEADER_BYTES + len(row)
        try:
            fd = self._written(key, row)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with self._folder.locked(patience):  # others use the memory: make room once
                self._evict(min(self.max_bytes, self._size()) - size)
            fd = self._written(key, row)
        try:
            os.utime(fd, ns=(used, used))
            with self._folder.locked(patience):
                total = self._size()
                if total + size > self.max_bytes:
                    total = self._evict(self.max_bytes - size)
                # With dir_fd it is linkat(2), which follows the link to the open file.
                os.link(f"/proc/self/fd/{fd}", _BLOCK + key, dst_dir_fd=self._folder.fd)
                self._write_size(total + size)
        except FileExistsError:
            return False
        finally:
            os.close(fd)
        return True

    def _written(self, key: str, row: memoryview) -> int:
        """An open file without a name that holds a block."""
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self._folder.fd)
        try:
            left = [memoryview(header_of(key, row)), row]
            while left:
                count = os.writev(fd, left)
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _opened(self, name: str, flags: int) -> int:
        """Open a file of the folder, and nothing else that somebody has put in its place."""
        # Not blocking: that may be a pipe.
        flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        fd = os.open(name, flags, 0o600, dir_fd=self._folder.fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is no file", name)
        return fd

    def _found(self) -> list[tuple[int, int, str]]:
        """When each block was used last, its size, and the name of its file."""
        found = []
        for entry in os.scandir(self._folder.fd):
            if entry.name.startswith(_BLOCK) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.name))
        return found

    def _evict(self, most: int) -> int:
        """Remove the longest unused blocks until the others have at most so many bytes, and less.

        Returns how many they have. The folder is locked: it is the truth about the size, too.
        """
        most = min(most, int(self.max_bytes * _KEPT))
        blocks = sorted(self._found(), reverse=True)
        total = sum(size for _, size, _ in blocks)
        while blocks and total > most:
            _, size, name = blocks.pop()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder.fd)
                self.evicted += 1
            total -= size
        self._write_size(total)
        return total

    def _size(self) -> int:
        """Bytes of all blocks. Off by those of writers that were killed since the last eviction."""
        try:
            fd = self._opened(_SIZE, os.O_RDONLY)
        except FileNotFoundError:  # somebody has removed it
            return sum(size for _, size, _ in self._found())
        try:
            return int.from_bytes(os.read(fd, 8), "little")
        finally:
            os.close(fd)

    def _write_size(self, size: int) -> None:
        fd = self._opened(_SIZE, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(fd, size.to_bytes(8, "little"), 0)
        finally:
            os.close(fd)
