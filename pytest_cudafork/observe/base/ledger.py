"""The session's ledger: one append-only file that every process of the session writes.

A record is one JSON object, preceded by a newline and written by a single ``write`` to a descriptor
opened with ``O_APPEND``. Linux serializes such writes, so the order of the file is the order of the
events across processes, and a writer that dies in the middle of its line loses that line alone.

A digit in the first record tells whether any process is known to have lost a record: a full disk
takes no further record, but does let a byte be overwritten. A process that cannot open the file, as
it has no descriptor left or a hook of the audit forbids it, or that may write no files, can still
change its mode, and says it by that.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable, Iterator

from pytest_cudafork.compat import proc_stat, written_in_c
from pytest_cudafork.compat.unpatched import contextlib, fcntl, io, os, re, stat, threading, time
from pytest_cudafork.observe.base.records import Record, decode
from pytest_cudafork.settings import environment

_HEAD = b'\n{"lost": '
"""How a ledger begins; the digit follows (mark_loss in record.c knows both)."""
_BEGINNING = re.compile(re.escape(_HEAD) + rb'([01]), "k": "ledger", [^\n]*')
_MOST_OF_FIRST_LINE = 1000
_GONE = (errno.ENOENT, errno.ENOTDIR)
_LOST_MODE = stat.S_IXUSR
"""The bit of the file's mode that says the same as the digit (mark_loss in record.c knows both)."""
_write = written_in_c.json_writer(", ", ": ")
_PATIENCE_S = 0.05


class LedgerError(OSError):
    """A file cannot be the ledger of this session; Recoverable by naming another."""


class Ledger:
    """The ledger at ``path``; any number of processes may hold one of these for the same file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = _file_at(path)

    def create(self, *, temporary: bool = False) -> None:
        """Make the file, or begin anew the ledger of an earlier session that is there.

        Args:
            temporary: Whether nobody wants it when the process that makes it is gone.

        Raises:
            LedgerError: something else is there, a link, or the ledger of a session that runs.
            OSError: it cannot be created or written.

        """
        is_new = not os.path.lexists(self.path)
        if not is_new and not stat.S_ISREG(os.lstat(self.path).st_mode):
            raise LedgerError(f"{self.path!r} is a link, a folder or a device, and no plain file")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            status = os.fstat(fd)
            self._check_own(status.st_uid)
            fcntl.flock(fd, fcntl.LOCK_EX)  # two sessions may begin at the same moment
            self._check_free(os.pread(fd, _MOST_OF_FIRST_LINE, 0))
            if status.st_mode & _LOST_MODE:
                os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_LOST_MODE)
            self._file = (status.st_dev, status.st_ino)
            os.ftruncate(fd, 0)
            system = {"temporary": _this_system()} if temporary else {}
            _, line = _make("ledger", started=_own_start(), **system)
            try:
                _write_whole(fd, _HEAD + b"0, " + line.removeprefix(b"\n{"), self.path)
            except OSError:
                os.ftruncate(fd, 0)  # half a record would be taken for another file next time
                if is_new:
                    os.unlink(self.path)
                raise
        finally:
            os.close(fd)

    def _check_own(self, owner: int) -> None:
        """Check that the file is not one that another user has laid there beforehand.

        root may write into whatever file it names: a checkout may be another user's.

        Raises:
            LedgerError: it is.

        """
        if os.geteuid() not in (0, owner):
            raise LedgerError(
                f"{self.path!r} belongs to user {owner}, who could change what it says"
            )

    def _check_free(self, beginning: bytes) -> None:
        """Check that nothing is lost by emptying the file.

        Raises:
            LedgerError: it holds something else, or the ledger of a session that runs.

        """
        if not beginning:
            return
        first = _first_record(beginning)
        if first is None:
            raise LedgerError(f"{self.path!r} holds something that is no ledger, and is left alone")
        if first.get("pid") != os.getpid() and _maker_runs(first):
            raise LedgerError(
                f"{self.path!r} is the ledger of another session: process {first['pid']}, which "
                "made it, is still running"
            )

    @property
    def is_abandoned(self) -> bool:
        """Whether it is a temporary one whose maker has gone: sure only in this very system."""
        try:
            with io.open(self.path, "rb") as file:
                first = _first_record(file.read(_MOST_OF_FIRST_LINE)) or {}
        except OSError:
            return False
        here = first.get("temporary") == (_this_system() or "unknown")
        return here and not _maker_runs(first)

    def append(self, kind: str, **fields: object) -> str:
        """Write one record and return its id.

        Raises:
            OSError: the ledger cannot be written, or took a part of the record only. Where that is
                possible, the file is marked as one that lacks a record.
            Exception: a hook of the audit does not let the file be opened; likewise.

        """
        record_id, line = _make(kind, **fields)
        self._append_whole(line)
        return record_id

    def take_in(self, records: Iterable[Record]) -> None:
        """Write records that another host's ledger has, with all that they say.

        Raises:
            OSError: as for ``append``.

        """
        data = b"".join(b"\n" + _write(record).encode("ascii") for record in records)
        if data:
            self._append_whole(data)

    def _append_whole(self, data: bytes) -> None:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                _write_whole(fd, data, self.path)
            finally:
                os.close(fd)
        except Exception:
            self.mark_loss()
            raise

    def mark_loss(self) -> None:
        """Note in the file, or on it, that a record is lost."""
        with contextlib.suppress(Exception):
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except Exception as error:
                if not isinstance(error, OSError) or error.errno not in _GONE:
                    self._mark_mode()
                return
            try:
                if os.pread(fd, len(_HEAD), 0) == _HEAD:
                    os.pwrite(fd, b"1", len(_HEAD))
            except OSError:  # a limit of the size of files that is lower still
                self._mark_mode()
            finally:
                os.close(fd)

    def _mark_mode(self) -> None:
        """Note on the file that a record is lost, without a descriptor, if it is the same file.

        What it holds cannot be looked at: which file it is has to do.

        Raises:
            OSError: It is gone, or another user's.

        """
        status = os.lstat(self.path)
        same = self._file is None or self._file == (status.st_dev, status.st_ino)
        if same and stat.S_ISREG(status.st_mode):
            os.chmod(self.path, stat.S_IMODE(status.st_mode) | _LOST_MODE)

    def reader(self) -> LedgerReader:
        """A reader from the beginning."""
        return LedgerReader(self)


def _file_at(path: str) -> tuple[int, int] | None:
    """Return which file a path leads to, device and number; None if there is none yet."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_ledger(path: str) -> bool:
    """Whether a file begins as a ledger does; False for one that cannot be read."""
    if not os.path.isfile(path):  # a pipe would be waited for
        return False
    try:
        with io.open(path, "rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except OSError:
        return False


_NUMBERS = itertools.count(1)
"""Of the records that this process makes."""


def _make(kind: str, **fields: object) -> tuple[str, bytes]:
    """Make a record of this moment: its id, and its line with the newline before it."""
    now = time.monotonic_ns()
    pid = os.getpid()
    record: Record = {
        "k": kind,
        # The number tells two of one tick apart: some machines' clocks are coarse.
        "id": f"{pid}-{now}-{next(_NUMBERS)}",
        "t": now,
        "pid": pid,
        "tid": threading.get_native_id(),
        "owner": environment.value(environment.OWNER),
        "test": environment.value(environment.TEST),
        "phase": environment.value(environment.PHASE),
        **fields,
    }
    return record["id"], b"\n" + _write(record).encode("ascii")


def _write_whole(fd: int, line: bytes, path: str) -> None:
    """Write a line at once.

    Raises:
        OSError: it could not be written, or only a part of it.

    """
    try:
        written = os.write(fd, line)
    except OSError as error:
        error.filename = path
        raise
    if written < len(line):
        words = f"{os.strerror(errno.ENOSPC)}: {written} of {len(line)} bytes were taken"
        raise OSError(errno.ENOSPC, words, path)


def _first_record(beginning: bytes) -> Record | None:
    """Return the record with which a ledger begins; None if it is no ledger."""
    match = _BEGINNING.match(beginning)
    return None if match is None else (decode(match[0][1:]) or {})


def _maker_runs(first: Record) -> bool:
    """Whether the process that made a ledger runs, as far as can be told.

    Where the kernel's file on it cannot be read, for want of a descriptor, that it is there counts.
    """
    pid = int(first.get("pid", 0))
    fields = proc_stat.fields_of(f"/proc/{pid}/stat")
    if not fields:
        return pid > 0 and proc_stat.is_there(pid)
    ended = fields[proc_stat.STATE] in proc_stat.ENDED
    return not ended and bool(first.get("started") == fields[proc_stat.STARTED])


def _this_system() -> str:
    """Return what is the same for all processes that see each other's numbers; "" if unknown.

    A folder may be shared by machines, by containers, and by what ran before a restart.
    """
    try:
        with io.open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _own_start() -> str:
    """Return when this process was started, in ticks of the kernel's clock; "" if not known."""
    return proc_stat.field(f"/proc/{os.getpid()}/stat", proc_stat.STARTED)


class LedgerReader:
    """Reads what has been appended since the last look.

    A last line that does not parse may still be in the middle of its ``write``: it is kept and
    tried again together with what follows.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._offset = 0
        self._tail = b""
        self._unread: list[Record] = []
        self._fd = -1
        self._file = (0, 0)
        self.torn = 0
        """Lines lost because their writer died while writing, or that are no records."""
        self.beginnings = 0
        """First lines of ledgers that were read: one, unless files were put behind each other."""

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
            except Exception:  # not only OSError: a hook of the audit may raise anything
                self._fd = -1
                return False
            status = os.fstat(self._fd)
            self._file = (status.st_dev, status.st_ino)
        return bool(self._unread) or status.st_size > self._offset

    def goes_on(self) -> bool:
        """Whether a later look sees the file of the one before, and nothing was taken from it."""
        if self._file == (0, 0):
            return True  # there was none
        try:
            status = os.stat(self._ledger.path)
        except OSError:
            return False
        same = (status.st_dev, status.st_ino) == self._file
        return same and status.st_size >= self._offset

    def new(self) -> list[Record]:
        """Return the records written since the last call, in ledger order."""
        unread, self._unread = self._unread, []
        if not self.behind():
            return unread
        data = b""
        while chunk := os.pread(self._fd, 1 << 20, self._offset):
            data += chunk
            self._offset += len(chunk)
        return [*unread, *self._parse(self._tail + data)]

    def damage(self) -> list[str]:
        """Say what is known to be missing from the ledger, in words; to be asked at the end.

        Records that are read for that are kept for the next look.
        """
        unread = self.new()
        if self._tail.strip():
            time.sleep(_PATIENCE_S)  # perhaps somebody is writing it
            unread += self.new()
        self._unread = unread
        try:
            with io.open(self._ledger.path, "rb") as file:
                beginning = file.read(_MOST_OF_FIRST_LINE)
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            return [f"the ledger cannot be read any more: {error}"]
        words = []
        match = _BEGINNING.match(beginning)
        if match is None:
            words.append(f"the ledger {self._ledger.path} was emptied or replaced meanwhile")
        elif match[1] == b"1":
            words.append("a process of the session could not write a record: is the disk full?")
        if match is not None and mode & _LOST_MODE:
            words.append(
                "a process of the session could not write to the ledger: it had no descriptor "
                "left, or a limit (RLIMIT_FSIZE) or a hook of the audit has forbidden it"
            )
        torn = self.torn + bool(self._tail.strip())
        if torn:
            lines = "1 line of the ledger is" if torn == 1 else f"{torn} lines of the ledger are"
            words.append(f"{lines} cut short, or no record")
        return words

    def _parse(self, data: bytes) -> Iterator[Record]:
        *lines, last = data.split(b"\n")
        for line in lines:
            if not line.strip():
                continue
            record = decode(line)
            if record is None:
                self.torn += 1
            elif not self._is_beginning(record):
                yield record
        record = decode(last)
        self._tail = last if record is None else b""
        if record is not None and not self._is_beginning(record):
            yield record

    def _is_beginning(self, record: Record) -> bool:
        is_one: bool = record["k"] == "ledger"
        self.beginnings += is_one
        return is_one
