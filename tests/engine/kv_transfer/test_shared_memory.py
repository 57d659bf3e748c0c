"""Blocks in shared memory: whole or not there, within their size, whatever becomes of writers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sample_engine.kv_transfer import shared_folder, shared_memory
from sample_engine.kv_transfer.frame import HEADER_BYTES
from sample_engine.kv_transfer.shared_memory import SharedMemoryStore
from sample_engine.kv_transfer.store import StoreError

SIZE = 1000
Opened = Callable[..., SharedMemoryStore]


@pytest.fixture
def opened(shm: str) -> Iterator[Opened]:
    """Opens the store, for one user more each time."""
    with contextlib.ExitStack() as stack:

        def open_store(blocks: float = 100) -> SharedMemoryStore:
            most = int(blocks * (SIZE + HEADER_BYTES))
            store = SharedMemoryStore(shm, "one", most)
            stack.callback(store.close)
            return store

        yield open_store


def block(number: int) -> memoryview:
    return memoryview(bytes([number]) * SIZE)


def put(store: SharedMemoryStore, *numbers: int) -> int:
    return store.put([f"k{number}" for number in numbers], [block(number) for number in numbers])


def got(store: SharedMemoryStore, *numbers: int) -> list[int]:
    """The blocks that came, of those that were asked for; each is what it should be."""
    rows = [bytearray(SIZE) for _ in numbers]
    count = store.get([f"k{number}" for number in numbers], [memoryview(row) for row in rows])
    for number, row in zip(numbers[:count], rows, strict=False):
        assert row == block(number)
    return list(numbers[:count])


def files(store: SharedMemoryStore) -> list[str]:
    return sorted(name for name in os.listdir(store._folder.path) if name.startswith("block-"))


def test_what_one_stores_the_other_fetches(opened: Opened) -> None:
    one, two = opened(), opened()
    assert put(one, 1, 2, 3) == 3
    assert put(two, 3, 4) == 1
    assert got(two, 1, 2, 3, 4, 5) == [1, 2, 3, 4]
    assert got(one, 5, 1) == []
    one.close()
    assert got(two, 1) == [1]
    assert two.metrics()["store_bytes"] == 4 * (SIZE + HEADER_BYTES)


def test_blocks_that_are_not_used_go_first(opened: Opened) -> None:
    store = opened(blocks=10)
    put(store, *range(8))
    assert got(store, 0) == [0]
    put(store, 8, 9, 10, 11)
    there = [number for number in range(12) if got(store, number)]
    assert there[:1] == [0]
    assert there[-4:] == [8, 9, 10, 11]
    assert len(files(store)) <= 10
    metrics = store.metrics()
    assert metrics["evicted_blocks"] == 12 - len(there) > 0
    assert metrics["store_bytes"] == len(there) * (SIZE + HEADER_BYTES)


def test_of_a_text_the_end_goes_before_the_beginning(opened: Opened) -> None:
    store = opened(blocks=10)
    put(store, *range(10))
    assert got(store, *range(10)) == list(range(10))
    put(store, 20, 21)
    kept = [number for number in range(10) if got(store, number)]
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 10


def test_a_block_that_is_larger_than_all_may_be_is_left_out(opened: Opened) -> None:
    store = opened(blocks=0.9)
    assert put(store, 1) == 0
    assert files(store) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[: HEADER_BYTES // 2],
        lambda data: b"",
        lambda data: data[:-5] + b"\xff" + data[-4:],
        lambda data: bytes(HEADER_BYTES) + data[HEADER_BYTES:],
    ],
    ids=["short", "long", "half a header", "empty", "one byte", "no header"],
)
def test_a_damaged_block_is_not_there_and_makes_room_for_a_whole_one(
    opened: Opened, damage: Callable[[bytes], bytes]
) -> None:
    store = opened()
    put(store, 1, 2, 3)
    path = store._folder.path / "block-k2"
    path.write_bytes(damage(path.read_bytes()))
    assert got(store, 1, 2, 3) == [1]
    assert store.metrics()["damaged_blocks"] == 1
    assert put(store, 2) == 1
    assert got(store, 1, 2, 3) == [1, 2, 3]


@pytest.mark.parametrize(
    "made",
    [os.mkdir, os.mkfifo, lambda path: os.symlink("size", path)],
    ids=["dir", "pipe", "link"],
)
def test_what_is_no_file_in_the_place_of_a_block_is_told(
    opened: Opened, made: Callable[[str], object]
) -> None:
    store = opened()
    made(f"{store._folder.path}/block-k1")
    with pytest.raises(StoreError, match=r"cannot be read: .*block-k1"):
        got(store, 1)
    assert put(store, 1, 2) == 1
    assert got(store, 2) == [2]


@pytest.mark.parametrize("moment", ["writev", "link"])
def test_of_a_writer_that_is_killed_nothing_is_left(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = opened()
    put(store, 1)
    child = os.fork()
    if child == 0:
        try:
            _die_at(moment, monkeypatch)
            put(store, 2)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert files(store) == ["block-k1"]
    assert got(store, 2) == []
    assert put(store, 2) == 1, "its lock is gone with it"
    assert got(store, 1, 2) == [1, 2]


def _die_at(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be killed in the middle of the next block, or when it is complete and has no name yet."""
    real = os.writev

    def half(fd: int, parts: Sequence[memoryview]) -> int:
        real(fd, [parts[0], parts[1][: SIZE // 2]])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def no_name(*arguments: object, **more: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(os, moment, half if moment == "writev" else no_name)


def test_a_block_that_is_written_in_parts_is_whole(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = opened(), os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, [parts[0][:7]]))
    put(store, 1)
    monkeypatch.undo()
    assert got(store, 1) == [1]


def test_full_memory_makes_room_once_and_is_told_then(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real, refusals = opened(), os.writev, [1]
    put(store, *range(10))

    def full(fd: int, parts: Sequence[memoryview]) -> int:
        if refusals:
            refusals.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, parts)

    monkeypatch.setattr(os, "writev", full)
    assert put(store, 10) == 1
    assert got(store, 10) == [10]
    refusals += [1, 1]
    with pytest.raises(StoreError, match=r"the shared memory '.*' takes no block: .*No space left"):
        put(store, 11)
    assert put(store, 11) == 1


def test_a_stopped_process_with_the_lock_is_told(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = opened(), opened()
    put(one, 1)
    monkeypatch.setattr(shared_memory, "_LOCK_SECONDS", 0.02)
    with one._folder.locked(shared_folder.Patience(0.0)):
        with pytest.raises(StoreError, match="a process that uses it may be stopped"):
            put(two, 2)
        assert got(two, 1) == [1], "who reads needs no lock"
    assert put(two, 2) == 1


def test_one_that_cannot_be_opened_leaves_nothing(
    shm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"cannot be used: .*No space left"):
        SharedMemoryStore(shm, "one", 1000)


class BusyTime:
    """The module ``time`` of a folder whose lock others have again and again for half a second."""

    def __init__(self, others: SharedMemoryStore) -> None:
        self.now = 0.0
        self.free_at = 0.0
        self._lock = others._folder._lock

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.free_at:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def others_take_it(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.free_at = self.now + 0.4


def test_all_blocks_of_a_call_have_one_time_to_wait_for_others(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = opened(), opened()
    busy = BusyTime(two)
    monkeypatch.setattr(shared_folder, "time", busy)
    written = one._written

    def taken_before_each_block(key: str, row: memoryview) -> int:
        fd = written(key, row)
        busy.others_take_it()
        return fd

    monkeypatch.setattr(one, "_written", taken_before_each_block)
    with pytest.raises(StoreError, match="was locked by others for 1 seconds"):
        put(one, *range(20))
    assert len(files(one)) == 2
    assert busy.now < 1.1
    busy.sleep(1.0)
    assert put(one, 30) == 1  # the next call has its own


def remove_users(path: Path) -> None:
    (path / "users").unlink()


def remove_files(path: Path) -> None:
    for name in path.iterdir():
        name.unlink()


def remove_all(path: Path) -> None:
    remove_files(path)
    path.rmdir()


@pytest.mark.parametrize("removed", [remove_users, remove_files, remove_all])
def test_a_folder_that_was_removed_by_hand_is_made_anew(
    opened: Opened, removed: Callable[[Path], None]
) -> None:
    one, two = opened(), opened()
    put(one, 1)
    removed(one._folder.path)
    assert got(two, 1) == got(one, 1) == ([1] if removed is remove_users else [])
    assert put(two, 2) == 1
    assert got(one, 2) == [2]
    assert one.metrics()["store_bytes"] == len(files(one)) * (SIZE + HEADER_BYTES)


def test_one_that_cannot_be_made_anew_is_told_and_made_later(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = opened()
    remove_all(store._folder.path)
    for name in ("pwrite", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, full)
            for call in (got, put):
                with pytest.raises(StoreError, match="No space left"):
                    call(store, 1)
        assert store.metrics()["store_bytes"] is None
    assert put(store, 1) == 1
    assert got(store, 1) == [1]


@pytest.mark.parametrize(
    "spoil",
    [
        os.unlink,
        lambda path: os.truncate(path, 0),
        lambda path: Path(path).write_bytes(b"\xff" * 9),
    ],
    ids=["removed", "empty", "other bytes"],
)
def test_a_size_that_somebody_has_spoiled_does_no_harm(
    opened: Opened, spoil: Callable[[str], object]
) -> None:
    store = opened(blocks=10)
    put(store, *range(8))
    spoil(f"{store._folder.path}/size")
    put(store, *range(10, 40))
    assert got(store, 39) == [39]
    assert len(files(store)) <= 10


@pytest.mark.parametrize(
    "made",
    [os.mkdir, os.mkfifo, lambda path: os.symlink("elsewhere", path)],
    ids=["dir", "pipe", "link"],
)
def test_what_is_no_file_in_the_place_of_the_size_is_told(
    opened: Opened, made: Callable[[str], object]
) -> None:
    store = opened()
    put(store, 1)
    path = store._folder.path / "size"
    path.unlink()
    (store._folder.path / "elsewhere").write_bytes(b"not to be written to")
    made(str(path))
    with pytest.raises(StoreError, match=r"takes no block: .*size"):
        put(store, 2)
    assert got(store, 1) == [1]
    assert (store._folder.path / "elsewhere").read_bytes() == b"not to be written to"


def test_what_is_no_file_does_not_stand_in_the_way_of_an_eviction(opened: Opened) -> None:
    store = opened(blocks=10)
    (store._folder.path / "block-x").mkdir()
    assert put(store, *range(30)) == 30
    assert got(store, 29) == [29]


@pytest.mark.parametrize("name", ["stat", "readv", "utime"])
def test_any_error_of_the_files_is_told_as_the_stores(
    opened: Opened, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = opened()
    put(store, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, name, fail)
        with pytest.raises(StoreError, match="Input/output error"):
            (put if name == "stat" else got)(store, 1)
    assert got(store, 1) == [1]
