"""The session's ledger: one append-only file that every process of the session writes.

A record is one JSON object, preceded by a newline and written by a single ``write`` to a descriptor
opened with ``O_APPEND``. Linux serializes such writes, so the order of the file is the order of the
events across processes, and a writer that dies in the middle of its line loses that line alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from pytest_cudafork.settings import environment

Record = dict[str, Any]


class Ledger:
    """The ledger at ``path``; any number of processes may hold one of these for the same file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> None:
        """Make the file.

        Raises:
            OSError: it cannot be created or written.

        """
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))

    def append(self, kind: str, **fields: Any) -> str:
        """Write one record and return its id.

        Raises:
            OSError: the ledger cannot be written.

        """
        import json

        now = time.monotonic_ns()
        pid = os.getpid()
        record: Record = {
            "k": kind,
            "id": f"{pid}-{now}",
            "t": now,
            "pid": pid,
            "tid": threading.get_native_id(),
            "owner": environment.value(environment.OWNER),
            "test": environment.value(environment.TEST),
            "phase": environment.value(environment.PHASE),
            **fields,
        }
        line = b"\n" + json.dumps(record).encode("ascii")
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
        return str(record["id"])

    def reader(self) -> LedgerReader:
        """A reader from the beginning."""
        return LedgerReader(self)


class LedgerReader:
    """Reads what has been appended since the last look.

    A last line that does not parse may still be in the middle of its ``write``: it is kept and
    tried again together with what follows.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._offset = 0
        self._tail = b""
        self._fd = -1
        self._file = (0, 0)
        self.torn = 0
        """Lines lost because their writer died while writing."""

    def close(self) -> None:
        """Give the file back; a later look opens it again."""
        if self._status() is not None:
            os.close(self._fd)
        self._fd = -1

    def _status(self) -> os.stat_result | None:
        """The open file; None before it is opened, and where a test has closed it.

        A test may close all files there are, and the number may be another file's by then.
        """
        try:
            status = os.fstat(self._fd)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == self._file else None

    def behind(self) -> bool:
        """Whether anything was written since the last look.

        Asked after every phase of every test, so it costs one system call on an open file. The
        descriptor's own position is never used: a forked child shares it.
        """
        status = self._status()
        if status is None:
            try:
                self._fd = os.open(self._ledger.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = -1
                return False
            status = os.fstat(self._fd)
            self._file = (status.st_dev, status.st_ino)
        return status.st_size > self._offset

    def new(self) -> list[Record]:
        """Return the records written since the last call, in ledger order."""
        if not self.behind():
            return []
        data = b""
        while chunk := os.pread(self._fd, 1 << 20, self._offset):
            data += chunk
            self._offset += len(chunk)
        return list(self._parse(self._tail + data))

    def _parse(self, data: bytes) -> Iterator[Record]:
        *lines, last = data.split(b"\n")
        for line in lines:
            if not line.strip():
                continue
            record = _decode(line)
            if record is None:
                self.torn += 1
            else:
                yield record
        record = _decode(last)
        self._tail = last if record is None else b""
        if record is not None:
            yield record


def _decode(line: bytes) -> Record | None:
    import json

    try:
        record = json.loads(line)
    except ValueError:
        return None
    if isinstance(record, dict) and "k" in record and "pid" in record:
        return record
    return None
