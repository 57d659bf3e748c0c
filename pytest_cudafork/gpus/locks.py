"""The locks that keep a GPU to one test at a time, over all processes of a user on a host.

To a lock a GPU is a name. It is a file locked by the kernel (the library filelock), so the locks of
a process that dies are free at once.

Every GPU has ``SHARERS`` slots. A test that has it to itself holds them all, one that shares it
holds one. All or nothing: who does not get everything at once gives everything back and waits with
nothing in hand, so nobody can wait for each other. Those who want from the same GPUs wait in one
line, so that a test that needs many is not overtaken for ever by tests that need one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import stat
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from filelock import BaseFileLock

SHARERS = 8
"""How many tests that allow sharing may have the same GPU at once."""

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


class LocksUnusable(RuntimeError):
    """The lock files cannot be made. Recoverable: name another temporary folder with TMPDIR."""


class WaitedTooLong(RuntimeError):
    """Others kept the GPUs beyond the time limit. Recoverable: try again, or wait longer."""


class Holder(NamedTuple):
    """Who holds a lock, as far as it has told."""

    gpu: str
    pid: int
    test: str

    def __str__(self) -> str:
        return f"{self.gpu} is held by process {self.pid} for {self.test}"


class Held:
    """Locks in hand, until ``release``."""

    def __init__(self, gpus: tuple[str, ...], locks: list[BaseFileLock], notes: list[str]) -> None:
        self.gpus = gpus
        self._locks = locks
        self._notes = notes
        self._pid = os.getpid()

    def release(self) -> None:
        """Give the GPUs back; a forked child that runs out of its test has none to give."""
        if os.getpid() != self._pid:
            return
        while self._notes:
            with contextlib.suppress(OSError):  # the folder may have been swept
                os.unlink(self._notes.pop())
        while self._locks:
            self._locks.pop().release()


class LockFolder:
    """The folder of the lock files."""

    def __init__(self, path: str) -> None:
        """Make the folder, for this user alone.

        Raises:
            LocksUnusable: it cannot be made, or is somebody else's.

        """
        self.path = path
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            found = os.lstat(path)
        except OSError as error:
            raise LocksUnusable(f"no GPU can be locked: {error}; set TMPDIR") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise LocksUnusable(
                f"no GPU can be locked in {path!r}: it is not a folder of user {os.getuid()}; "
                "remove it, or set TMPDIR"
            )

    def acquire(self, gpus: Sequence[str], n: int, *, share: bool, wait: float, test: str) -> Held:
        """Lock `n` of the GPUs, waiting for them if need be.

        Args:
            gpus: names to choose from, those to be taken first in front.
            n: how many; not more than there are names.
            share: leave room for others who share.
            wait: the longest time to wait, in seconds; at 0 only what is free is taken.
            test: what to tell others who wait.

        Raises:
            WaitedTooLong: they were not free in time; the message says who holds which.
            LocksUnusable: the files cannot be locked.

        """
        deadline = time.monotonic() + wait
        line = self._lock(f"line-{_digest(gpus)}.lock")
        in_line, pause = False, _FIRST_PAUSE
        try:
            while True:
                in_line = in_line or _try_lock(line)
                held = self._take(gpus, n, share, test) if in_line else None
                if held is not None:
                    return held
                left = deadline - time.monotonic()
                if left <= 0:
                    complaint = self._complaint(gpus, n, share, wait)
                    if not in_line:
                        complaint += "; other tests wait ahead of this one"
                    raise WaitedTooLong(complaint)
                # unequal pauses, or two who take from each other's GPUs might stay in step
                time.sleep(min(left, pause * random.uniform(0.5, 1.0)))
                pause = min(2 * pause, _LONGEST_PAUSE)
        except (OSError, NotImplementedError) as error:
            raise LocksUnusable(
                f"no GPU can be locked in {self.path!r}: {error}; set TMPDIR to a folder of this "
                "machine"
            ) from error
        finally:
            if in_line:
                line.release()

    def _take(self, gpus: Sequence[str], n: int, share: bool, test: str) -> Held | None:
        """Lock `n` GPUs now, or none."""
        locks: list[BaseFileLock] = []
        slots: dict[str, int] = {}
        complete = False
        try:
            if share:  # those with the fewest sharers first
                passes = [(gpu, range(slot, slot + 1)) for slot in range(SHARERS) for gpu in gpus]
            else:
                passes = [(gpu, range(SHARERS)) for gpu in gpus]
            for gpu, wanted in passes:
                if gpu not in slots and self._take_slots(gpu, wanted, locks):
                    slots[gpu] = wanted.start
                    if len(slots) == n:
                        complete = True
                        break
            if not complete:
                return None
            taken = tuple(gpu for gpu in gpus if gpu in slots)
            return Held(taken, locks, self._write_notes(slots, test))
        finally:
            if not complete:
                for lock in reversed(locks):
                    lock.release()

    def _take_slots(self, gpu: str, wanted: Iterable[int], locks: list[BaseFileLock]) -> bool:
        before = len(locks)
        for slot in wanted:
            lock = self._lock(f"{_file_name(gpu)}.{slot}.lock")
            if not _try_lock(lock):
                while len(locks) > before:
                    locks.pop().release()
                return False
            locks.append(lock)
        return True

    def _lock(self, name: str) -> BaseFileLock:
        from filelock import FileLock

        return FileLock(os.path.join(self.path, name), thread_local=False)

    def _write_notes(self, slots: dict[str, int], test: str) -> list[str]:
        """Say who holds the locks; a note is read by those only who cannot have its lock."""
        notes = []
        for gpu, slot in slots.items():
            path = os.path.join(self.path, f"{_file_name(gpu)}.{slot}.holder")
            with contextlib.suppress(OSError):  # no room: a holder nobody can name still holds
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"gpu": gpu, "pid": os.getpid(), "test": test}, file)
                notes.append(path)
        return notes

    def holders(self, gpus: Sequence[str]) -> list[Holder]:
        """Return who holds these GPUs, as far as the holders said so and are alive."""
        found = []
        for gpu in gpus:
            for slot in range(SHARERS):
                path = os.path.join(self.path, f"{_file_name(gpu)}.{slot}.holder")
                try:
                    with open(path, encoding="utf-8") as file:
                        note = json.load(file)
                    holder = Holder(gpu, int(note["pid"]), str(note["test"]))
                except (OSError, ValueError, LookupError, TypeError):
                    continue  # nobody's, or being written
                if os.path.exists(f"/proc/{holder.pid}"):
                    found.append(holder)
        return found

    def _complaint(self, gpus: Sequence[str], n: int, share: bool, wait: float) -> str:
        how = " to share" if share else ""
        text = f"{n} of {len(gpus)} GPUs{how} were not free within {wait:g} s"
        holders = self.holders(gpus)
        if not holders:
            return f"{text}; who holds them is not known (the locks are in {self.path!r})"
        return f"{text}: {'; '.join(map(str, holders))}"


def user_folder() -> str:
    """Where the sessions of this user on this host lock, or those that one test has started."""
    import tempfile

    # those lock among themselves: the test holds its GPUs already
    given = environment.value(environment.GPU_LOCKS)
    return given or os.path.join(tempfile.gettempdir(), f"pytest-cudafork-gpus-{os.getuid()}")


def _try_lock(lock: BaseFileLock) -> bool:
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _file_name(gpu: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", gpu)


def _digest(names: Sequence[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
