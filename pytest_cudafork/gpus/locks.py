"""The locks that keep what a test has of a GPU from others, over all processes of a user on a host.

To a lock a GPU is a name. Everybody who wants GPUs has an entry in the folder: a file locked by the
kernel (the library filelock), so the entry of a process that dies is void at once, and beside it a
note that says what it waits for or holds. Entries are read and changed under one more lock,
``table``, that nobody keeps for longer than that takes.

All or nothing: who does not get everything at once holds nothing while it waits, so nobody can wait
for each other. Whose turn it is, ``packing.turn`` says.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cudafork.gpus import packing
from pytest_cudafork.gpus.packing import Card, Request
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from filelock import BaseFileLock

SHARERS = packing.PARTS
"""How many tests that allow sharing may have the same GPU at once."""

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25
_SILENT_SECONDS = 10.0
"""After so long without looking one who waits is stopped, and nobody stands behind it any more."""
_TABLE_SECONDS = 10.0
"""How long the table may be somebody else's, whatever the time limit of a test."""
_TABLE_POLL_SECONDS = 0.003

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
    """What somebody has of GPUs, until ``release``."""

    def __init__(self, gpus: tuple[str, ...], entry: _Entry) -> None:
        self.gpus = gpus
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
        self._path = os.path.join(folder, self.name)
        self._lock = _new_lock(f"{self._path}.entry")
        self._lock.acquire(timeout=0)  # nobody else knows of it

    def write(self) -> None:
        """Write the note."""
        _write(f"{self._path}.holder", self.note)

    def read(self) -> None:
        """Read what others have written into the note: that they have overtaken it."""
        self.note = _read(f"{self._path}.holder") or self.note

    def remove(self) -> None:
        """Take the entry away."""
        for ending in (".entry", ".holder"):
            with contextlib.suppress(OSError):  # the folder may have been swept
                os.unlink(self._path + ending)
        self._lock.release()


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
        start = time.monotonic()
        try:
            with self._waiting(wish, test, start) as entry:
                pause = _FIRST_PAUSE
                while True:
                    look = self._look(entry, wish, cards, used)
                    if look.cards:
                        return Held(look.cards, entry)
                    left = start + wait - time.monotonic()
                    if left <= 0:
                        raise WaitedTooLong(self._complaint(wish, wait, look))
                    time.sleep(min(left, pause * random.uniform(0.5, 1.0)))
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except (OSError, NotImplementedError) as error:
            raise LocksUnusable(
                f"no GPU can be locked in {self.path!r}: {error}; set TMPDIR to a folder of this "
                "machine"
            ) from error

    @contextlib.contextmanager
    def _waiting(self, wish: Request, test: str, since: float) -> Iterator[_Entry]:
        """Stand in the queue; who leaves it with nothing in hand has no entry any more."""
        note = {"pid": os.getpid(), "test": test, "since": since, "wish": _packed(wish)}
        with self._table():
            entry = _Entry(self.path, note)
            entry.note["seen"] = time.monotonic()
            entry.write()
        try:
            yield entry
        finally:
            if not entry.note.get("holds"):
                entry.remove()

    def _look(self, entry: _Entry, wish: Request, cards: list[Card], used: Used | None) -> _Look:
        """Take the GPUs if it is one's turn; else say so in the note, and keep in step."""
        with self._table():
            entry.read()
            notes = self._notes(but=entry.name)
            held = _held(cards, notes)
            if used is not None and wish.memory is not None:
                cards = _with_others(cards, notes, held, used())
            now = entry.note["seen"] = time.monotonic()
            waiting = [(str(name), note) for name, note in notes.items() if _waits(note, now)]
            waiting.append((entry.name, entry.note))
            waiting.sort(key=lambda one: (one[1]["since"], one[0]))
            queue = [_unpacked(note["wish"]) for _, note in waiting]
            mine = [name for name, _ in waiting].index(entry.name)
            turn = packing.turn(cards, held, queue, mine)
            if turn.cards:
                shares = {card.name: [wish.share_of(card), card.capacity] for card in cards}
                entry.note["holds"] = {name: shares[name] for name in turn.cards}
                entry.note["others"] = {card.name: card.others for card in cards}
                for place in turn.overtakes:
                    self._overtake(*waiting[place])
            else:
                kept = packing.room_to_keep(cards, held, queue, mine)
                entry.note["wish"]["kept"] = list(kept)
            entry.write()
            return _Look(turn.cards, turn.behind, tuple(cards))

    def _overtake(self, name: str, note: dict[str, Any]) -> None:
        note["wish"]["overtaken"] += 1
        _write(os.path.join(self.path, f"{name}.holder"), note)

    @contextlib.contextmanager
    def _table(self) -> Iterator[None]:
        """Read and change entries alone."""
        from filelock import Timeout

        lock = _new_lock(os.path.join(self.path, "table.lock"))
        try:
            lock.acquire(timeout=_TABLE_SECONDS, poll_interval=_TABLE_POLL_SECONDS)
        except Timeout:
            raise LocksUnusable(
                f"no GPU can be locked in {self.path!r}: another process has kept the table for "
                f"{_TABLE_SECONDS:g} s (is one of your sessions stopped?)"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _notes(self, but: str = "") -> dict[str, dict[str, Any]]:
        """Return the notes of the living, by the name of their entries; remove the others'."""
        found = {}
        for file_name in sorted(os.listdir(self.path)):
            name, ending = os.path.splitext(file_name)
            if ending != ".entry" or name == but:
                continue
            path = os.path.join(self.path, name)
            if _is_void(f"{path}.entry"):
                for ending in (".holder", ".entry"):
                    with contextlib.suppress(OSError):
                        os.unlink(path + ending)
            else:
                found[name] = _read(f"{path}.holder")
        return found

    def holders(self, gpus: Sequence[str]) -> list[Holder]:
        """Return who holds these GPUs, as far as the holders said so and are alive."""
        with self._table():
            notes = self._notes()
        return [
            Holder(gpu, int(note["pid"]), str(note["test"]))
            for gpu in gpus
            for note in notes.values()
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
    """What one who waits has found: its cards, or why there are none yet."""

    cards: tuple[str, ...]
    behind: bool
    seen: tuple[Card, ...]


def _packed(wish: Request) -> dict[str, Any]:
    return {**wish._asdict(), "cards": list(wish.cards), "kept": list(wish.kept)}


def _unpacked(data: dict[str, Any]) -> Request:
    return Request(**{**data, "cards": tuple(data["cards"]), "kept": tuple(data["kept"])})


def _write(path: str, note: dict[str, Any]) -> None:
    """Write a note; a holder without one, for want of room, has all of every GPU."""
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump(note, file)


def _read(path: str) -> dict[str, Any]:
    """Read a note; {} for one that could not be written: its entry holds everything."""
    try:
        with open(path, encoding="utf-8") as file:
            note = json.load(file)
        _unpacked(note["wish"])
        float(note["since"]), float(note["seen"]), int(note["pid"]), str(note["test"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return dict(note)


def _waits(note: dict[str, Any], now: float) -> bool:
    return bool(note) and not note.get("holds") and now - note["seen"] < _SILENT_SECONDS


def _held(cards: Sequence[Card], notes: Mapping[str, dict[str, Any]]) -> dict[str, list[int]]:
    """Return what holders have of each card; who measured it otherwise has the same part of it."""
    held: dict[str, list[int]] = {card.name: [] for card in cards}
    for card in cards:
        for note in notes.values():
            if not note:
                held[card.name].append(card.capacity)
            elif card.name in (note.get("holds") or ()):
                share, capacity = note["holds"][card.name]
                held[card.name].append(-(-share * card.capacity // capacity))
    return held


def _with_others(
    cards: Sequence[Card],
    notes: Mapping[str, dict[str, Any]],
    held: Mapping[str, Sequence[int]],
    used: Mapping[str, int],
) -> list[Card]:
    """Return the cards with what strangers hold of them."""
    found = []
    for card in cards:
        by_age = sorted(
            (note for note in notes.values() if card.name in (note.get("holds") or ())),
            key=lambda note: float(note["seen"]),
        )
        noted = int(by_age[-1].get("others", {}).get(card.name, 0)) if by_age else 0
        others = packing.held_by_others(used.get(card.name, 0), sum(held[card.name]), noted)
        found.append(card._replace(others=others))
    return found


def user_folder() -> str:
    """Where the sessions of this user on this host lock, or those that one test has started."""
    import tempfile

    # those lock among themselves: the test holds its GPUs already
    given = environment.value(environment.GPU_LOCKS)
    return given or os.path.join(tempfile.gettempdir(), f"pytest-cudafork-gpus-{os.getuid()}")


def _is_void(path: str) -> bool:
    """Whether nobody holds the lock of an entry; one that is gone just now is void, too."""
    if not os.path.exists(path):
        return True
    lock = _new_lock(path)
    if not _try_lock(lock):
        return False
    lock.release()
    return True


def _new_lock(path: str) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(path, thread_local=False)


def _try_lock(lock: BaseFileLock) -> bool:
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
