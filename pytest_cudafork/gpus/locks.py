"""The locks that keep what a test has of a GPU from others, over all processes of a user on a host.

To a lock a GPU is a name. Everybody who wants GPUs has an entry in the folder: a file locked by the
kernel (the library filelock), so the entry of a process that dies is void at once, and beside it a
note that says what it waits for or holds. Entries are read and changed under one more lock,
``table``, that nobody keeps for longer than that takes: what is in use is measured outside, for the
driver may let the question wait while a test's memory is freed. Who waits looks again when entries
have come or gone, and leaves the table to others for most of the time, the more so the more wait.

All or nothing: who does not get everything at once holds nothing while it waits, so nobody can wait
for each other. Whose turn it is, ``packing.turn`` says.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_cudafork.compat.unpatched import time
from pytest_cudafork.gpus import lock_files, notes, packing
from pytest_cudafork.gpus.notes import Measured
from pytest_cudafork.gpus.packing import Card, Request
from pytest_cudafork.settings import environment

_INNER = "cudafork-lease-"
"""How the folder begins in which the sessions lock that a test with GPUs starts; the name of the
entry follows, and who sweeps a dead one's entry sweeps that folder, too."""
_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25
"""After so long one looks again though no entry has come or gone: strangers may have."""
_GLANCE_SECONDS = 0.01
"""How often one glances at the folder meanwhile, which needs no lock."""
_SILENT_SECONDS = 10.0
"""After so long without looking one who waits is stopped, and nobody stands behind it any more."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_TABLE_SECONDS = 60.0
"""How long the table may be somebody else's, whatever the time limit of a test: it is used for
milliseconds, so this is for a process that was stopped meanwhile."""

Used = Callable[[], Mapping[str, int]]
"""Measures what is in use on each GPU, in bytes; names that are not there are not known."""


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
    """What somebody has of GPUs, until ``release``.

    ``mark`` is a name that no other has; in the folder ``inner_locks``, which goes with it, the
    sessions lock that a test with these GPUs starts.
    """

    def __init__(self, gpus: tuple[str, ...], entry: _Entry) -> None:
        self.gpus = gpus
        self.inner_locks = entry.inner_locks
        self.mark = os.path.basename(self.inner_locks)
        self._entry: _Entry | None = entry
        self._pid = os.getpid()

    def release(self) -> None:
        """Give the GPUs back; a forked child that runs out of its test has none to give."""
        if os.getpid() == self._pid and self._entry is not None:
            self._entry.remove()
            self._entry = None


class _Entry:
    """One who waits or holds: its lock, and what its note says."""

    def __init__(self, folder: str, note: dict[str, Any]) -> None:
        self.name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self.note = note
        self.inner_locks = _inner_locks(folder, self.name)
        self._path = os.path.join(folder, self.name)
        self._lock = lock_files.new_lock(f"{self._path}.entry")
        self._lock.acquire(timeout=0)  # nobody else knows of it

    def write(self) -> None:
        """Write the note; an ``OSError`` if it cannot be: others would take it for a holder's."""
        notes.write(f"{self._path}.holder", self.note)

    def read(self) -> None:
        """Read what others have written into the note: that they have overtaken it."""
        self.note = notes.read(f"{self._path}.holder") or self.note

    def leave(self) -> None:
        """Take the entry away if it only waits."""
        if not self.note.get("holds"):
            self.remove()

    def remove(self) -> None:
        """Take the entry away."""
        _remove_folder(self.inner_locks)
        for ending in (".entry", ".holder"):
            with contextlib.suppress(OSError):  # the folder may have been swept
                os.unlink(self._path + ending)
        self._lock.release()


class LockFolder:
    """The folder of the lock files."""

    def __init__(self, path: str) -> None:
        """Make the folder, for this user alone.

        Raises:
            LocksUnusable: it cannot be made, is somebody else's, or others may write there.

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
        if found.st_mode & _OTHERS_WRITE:
            raise LocksUnusable(
                f"no GPU can be locked in {path!r}: other users may write there "
                f"(mode {stat.S_IMODE(found.st_mode):o}); remove it, or set TMPDIR"
            )

    def acquire(
        self,
        gpus: Sequence[str],
        n: int,
        *,
        share: bool,
        wait: float,
        test: str,
        memory: int | None = None,
        sizes: Mapping[str, int] | None = None,
        used: Used | None = None,
    ) -> Held:
        """Take `n` of the GPUs, waiting for them if need be.

        Args:
            gpus: names to choose from, those to be taken first in front.
            n: how many; not more than there are names.
            share: leave room for others who share.
            wait: the longest time to wait, in seconds; at 0 only what is free is taken.
            test: what to tell others who wait.
            memory: how much of each is needed, in bytes; others may have the rest.
            sizes: the bytes of each GPU whose memory is known.
            used: measures what is in use; asked for those that need memory.

        Raises:
            WaitedTooLong: they were not free in time; the message says who holds which.
            LocksUnusable: the files cannot be locked.

        """
        known = sizes or {}
        cards = [Card(gpu, known.get(gpu, packing.PARTS)) for gpu in gpus]
        wish = Request(n, tuple(gpus), 1 if share else packing.PARTS, memory)
        measures = used if memory is not None else None
        start = time.monotonic()
        try:
            with self._waiting(wish, test, start) as entry:
                while True:
                    left = start + wait - time.monotonic()
                    look = self._look(entry, cards, only=measures is not None)
                    if measures is not None and (look.hopeful or left <= 0):
                        measured = Measured(measures(), look.holders, look.changed)
                        look = self._look(entry, cards, measured)
                    if look.cards:
                        return Held(look.cards, entry)
                    if left <= 0:
                        raise WaitedTooLong(self._complaint(wish, wait, look))
                    self._pause(look, left)
        except (OSError, NotImplementedError) as error:
            raise LocksUnusable(
                f"no GPU can be locked in {self.path!r}: {error}; set TMPDIR to a folder of this "
                "machine that has room"
            ) from error

    @contextlib.contextmanager
    def _waiting(self, wish: Request, test: str, since: float) -> Iterator[_Entry]:
        """Stand in the queue; who leaves it with nothing in hand has no entry any more."""
        note = {"pid": os.getpid(), "test": test, "since": since, "wish": notes.packed(wish)}
        with contextlib.ExitStack() as leaving:
            with self._table():
                entry = _Entry(self.path, note)
                leaving.callback(entry.leave)
                entry.note["seen"] = time.monotonic()
                entry.write()
            try:
                yield entry
            except BaseException:  # perhaps just as it took its cards
                entry.note.pop("holds", None)
                raise

    def _look(
        self,
        entry: _Entry,
        cards: Sequence[Card],
        measured: Measured | None = None,
        *,
        only: bool = False,
    ) -> _Look:
        """Take the GPUs if it is one's turn; else say so in the note, and keep in step.

        Args:
            entry: one's own.
            cards: those to choose from.
            measured: what was in use before, and who held what then; None: nothing is known.
            only: take nothing, whoever's turn it is.

        """
        with self._table():
            start = time.monotonic()
            changed = self._changed()
            entry.read()
            others = self._notes(but=entry.name)
            held = notes.held(cards, others)
            if measured is not None:
                cards = notes.with_strangers(cards, others, measured)
            entry.note["seen"] = time.monotonic()
            waiting = [(str(name), note) for name, note in others.items() if _waits(note, start)]
            waiting.append((entry.name, entry.note))
            waiting.sort(key=lambda one: (one[1]["since"], one[0]))
            queue = [notes.unpacked(note["wish"]) for _, note in waiting]
            mine = [name for name, _ in waiting].index(entry.name)
            turn = packing.turn(cards, held, queue, mine)
            hopeful = bool(turn.cards) or turn.behind or queue[mine].is_due
            if only:
                turn = turn._replace(cards=())
            elif turn.cards:
                shares = {card.name: [queue[mine].share_of(card), card.capacity] for card in cards}
                entry.note["holds"] = {name: shares[name] for name in turn.cards}
                entry.note["others"] = notes.strangers_to_note(cards, others, measured)
                for place in turn.overtakes:
                    self._overtake(*waiting[place])
            else:
                kept = packing.room_to_keep(cards, held, queue, mine)
                entry.note["wish"]["kept"] = list(kept)
            entry.write()
            holders = notes.holders(others)
            if measured is not None and measured.holders != holders:
                changed = measured.changed  # it is no longer so: look again soon
            share = len(waiting) * (time.monotonic() - start)
        return _Look(turn.cards, turn.behind, tuple(cards), hopeful, holders, changed, share)

    def _pause(self, look: _Look, left: float) -> None:
        """Sleep until entries have come or gone, and long enough that the others get to look."""
        least = max(_SHORTEST_PAUSE, 2 * look.table_seconds) * random.uniform(0.5, 1.0)
        end = time.monotonic() + min(left, max(least, _LONGEST_PAUSE))
        time.sleep(min(left, least))
        while self._changed() == look.changed:
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _GLANCE_SECONDS))

    def _changed(self) -> int:
        """When entries have last come or gone; the clock of files has steps of milliseconds."""
        return os.stat(self.path).st_mtime_ns

    def _overtake(self, name: str, note: dict[str, Any]) -> None:
        note["wish"]["overtaken"] += 1
        notes.write(os.path.join(self.path, f"{name}.holder"), note)

    @contextlib.contextmanager
    def _table(self) -> Iterator[None]:
        """Read and change entries alone."""
        # Not by the library, which makes one that has been swept as the umask says.
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        try:
            with lock_files.kept(os.path.join(self.path, "table.lock"), _TABLE_SECONDS):
                yield
        except lock_files.KeptTooLong as error:
            raise LocksUnusable(f"no GPU can be locked: {error}") from None

    def _notes(self, but: str = "") -> dict[str, dict[str, Any]]:
        """Return the notes of the living, by the name of their entries; remove the others'."""
        found = {}
        for file_name in sorted(os.listdir(self.path)):
            name, ending = os.path.splitext(file_name)
            if ending != ".entry" or name == but:
                continue
            path = os.path.join(self.path, name)
            if lock_files.is_void(f"{path}.entry"):
                _remove_folder(_inner_locks(self.path, name))
                for ending in (".holder", ".entry"):
                    with contextlib.suppress(OSError):
                        os.unlink(path + ending)
            else:
                found[name] = notes.read(f"{path}.holder")
        return found

    def holders(self, gpus: Sequence[str]) -> list[Holder]:
        """Return who holds these GPUs, as far as the holders said so and are alive."""
        with self._table():
            found = self._notes()
        return [
            Holder(gpu, int(note["pid"]), str(note["test"]))
            for gpu in gpus
            for note in found.values()
            if gpu in (note.get("holds") or ())
        ]

    def _complaint(self, wish: Request, wait: float, look: _Look) -> str:
        from pytest_cudafork.settings.sizes import spell_size

        how = " to share" if wish.parts < packing.PARTS else ""
        how += "" if wish.memory is None else f" with {spell_size(wish.memory)} free"
        text = f"{wish.n} of {len(wish.cards)} GPUs{how} were not free within {wait:g} s"
        holders = self.holders(wish.cards)
        told = [*map(str, holders)]
        told += [
            f"{card.name} has {spell_size(card.others)} in use by others than tests"
            for card in look.seen
            if card.others
        ]
        if told:
            text += f": {'; '.join(told)}"
        elif not look.behind:
            text += f"; who holds them is not known (the locks are in {self.path!r})"
        return text + ("; other tests wait ahead of this one" if look.behind else "")


class _Look(NamedTuple):
    """What one who waits has found: its cards, or why there are none yet.

    Attributes:
        cards: What it has now.
        behind: Whether others came first.
        seen: All cards, with what strangers hold of them if that was measured.
        hopeful: Whether it would have its cards, or soon, as far as this look knew.
        holders: As ``Measured`` has it.
        changed: When entries had last come or gone.
        table_seconds: How long the table is in use if everybody who waits looks once.

    """

    cards: tuple[str, ...]
    behind: bool
    seen: tuple[Card, ...]
    hopeful: bool
    holders: Mapping[str, Any]
    changed: int
    table_seconds: float


def _waits(note: dict[str, Any], now: float) -> bool:
    return bool(note) and not note.get("holds") and now - note["seen"] < _SILENT_SECONDS


def _inner_locks(folder: str, name: str) -> str:
    return os.path.join(folder, f"{_INNER}{name}")


def _remove_folder(path: str) -> None:
    if os.path.exists(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def user_folder() -> str:
    """Where the sessions of this user on this host lock, or those that one test has started."""
    import tempfile

    # those lock among themselves: the test holds its GPUs already
    given = environment.value(environment.GPU_LOCKS)
    return given or os.path.join(tempfile.gettempdir(), f"pytest-cudafork-gpus-{os.getuid()}")
