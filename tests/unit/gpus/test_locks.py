"""No GPU has two exclusive holders, and nobody waits for ever: real lock files, real processes."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.gpus.locks import (
    Held,
    LockFolder,
    LocksUnusable,
    WaitedTooLong,
    user_folder,
)
from pytest_cudafork.gpus.notes import write as really_write
from pytest_cudafork.gpus.packing import MOST_OVERTAKEN, PARTS
from pytest_cudafork.gpus.packing import Request as Wish

GPUS = ("GPU-0", "GPU-1", "GPU-2")
LIMIT = 240.0
"""Seconds that no wait of these tests comes near, if nobody is stuck."""


class Book:
    """Who has which GPU, as the holders themselves write it down while they hold it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, list[bool]] = {gpu: [] for gpu in GPUS}
        self.wrong: list[str] = []
        self.leases = 0

    def enter(self, gpus: tuple[str, ...], share: bool) -> None:
        """Write down a new holder."""
        with self._lock:
            self.leases += 1
            for gpu in gpus:
                present = self._holders[gpu]
                if present and not (share and all(present)):
                    self.wrong.append(f"{gpu}: {present} and now {share}")
                if len(present) >= PARTS:
                    self.wrong.append(f"{gpu}: more than {PARTS}")
                present.append(share)

    def leave(self, gpus: tuple[str, ...], share: bool) -> None:
        """Cross a holder out."""
        with self._lock:
            for gpu in gpus:
                self._holders[gpu].remove(share)


Request = tuple[tuple[str, ...], int, bool, float]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """What one test asks for: candidates in any order, how many, whether shared, for how long."""
    gpus = draw(st.lists(st.sampled_from(GPUS), min_size=1, unique=True))
    return tuple(gpus), draw(st.integers(1, len(gpus))), draw(st.booleans()), draw(st.floats(0, 2))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(requests(), max_size=4), min_size=2, max_size=5))
def test_any_workers_get_what_they_ask_for_and_never_what_others_have(
    plans: list[list[Request]],
) -> None:
    book = Book()
    with tempfile.TemporaryDirectory() as path:

        def work(plan: list[Request]) -> None:
            folder = LockFolder(path)
            for gpus, n, share, milliseconds in plan:
                held = folder.acquire(gpus, n, share=share, wait=LIMIT, test="t")
                book.enter(held.gpus, share)
                if len(held.gpus) != n or not set(held.gpus) <= set(gpus):
                    book.wrong.append(f"asked for {n} of {gpus}, got {held.gpus}")
                time.sleep(milliseconds / 1000)
                book.leave(held.gpus, share)
                held.release()

        threads = [threading.Thread(target=work, args=(plan,), daemon=True) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    assert not book.wrong
    assert book.leases == sum(len(plan) for plan in plans)


def test_a_wait_is_over_in_time_also_where_a_test_has_stopped_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LockFolder(str(tmp_path))
    held = folder.acquire(GPUS, 3, share=False, wait=1, test="holder")
    own = sys.modules["pytest_cudafork.gpus.locks"]

    def stopped() -> float:
        asked = sys._getframe(1).f_globals
        assert asked is not vars(own), "the limit would never be over"
        return clock()

    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", stopped)
    with pytest.raises(WaitedTooLong):
        folder.acquire(GPUS, 1, share=False, wait=0.05, test="waits")
    held.release()


class Model:
    """How many share each GPU; -1 is one holder alone."""

    def __init__(self) -> None:
        self.state = dict.fromkeys(GPUS, 0)

    def can(self, n: int, share: bool) -> bool:
        """Whether a request can be had at once."""
        free = [s for s in self.state.values() if s == 0 or (share and 0 < s < PARTS)]
        return len(free) >= n

    def change(self, gpus: tuple[str, ...], share: bool, by: int) -> None:
        """Take or give back."""
        for gpu in gpus:
            self.state[gpu] += by if share else -by


STEPS = st.lists(
    st.tuples(st.integers(1, len(GPUS)), st.booleans()) | st.integers(0, 20), max_size=40
)


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_what_is_free_is_had_at_once_and_nothing_else(steps: list[tuple[int, bool] | int]) -> None:
    model = Model()
    hold: list[tuple[Held, bool]] = []
    with tempfile.TemporaryDirectory() as path:
        folder = LockFolder(path)
        for step in steps:
            if isinstance(step, int):
                if hold:
                    held, share = hold.pop(step % len(hold))
                    model.change(held.gpus, share, -1)
                    held.release()
                continue
            n, share = step
            possible = model.can(n, share)
            try:
                held = folder.acquire(GPUS, n, share=share, wait=0, test="t")
            except WaitedTooLong:
                assert not possible
            else:
                assert possible
                model.change(held.gpus, share, 1)
                hold.append((held, share))
        for held, _ in hold:
            held.release()
        assert not list(Path(path).glob("*.holder"))


WORKER = """
import json, os, random, sys, time
from pytest_cudafork.gpus.locks import LockFolder
path, log, seed = sys.argv[1:]
chance = random.Random(int(seed))
folder = LockFolder(path)
fd = os.open(log, os.O_WRONLY | os.O_APPEND)
for _ in range(15):
    n, share = chance.randint(1, 3), chance.random() < 0.4
    held = folder.acquire(["GPU-0", "GPU-1", "GPU-2"], n, share=share, wait=240, test=seed)
    os.write(fd, (json.dumps(["in", held.gpus, share]) + "\\n").encode())
    time.sleep(chance.random() / 300)
    os.write(fd, (json.dumps(["out", held.gpus, share]) + "\\n").encode())
    held.release()
"""


@pytest.mark.slow
def test_processes_never_share_a_gpu_that_one_of_them_has_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    seeds = random.sample(range(1000), 4)
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / "l"), str(log), str(seed)])
        for seed in seeds
    ]
    assert [worker.wait(LIMIT) for worker in workers] == [0] * len(workers), seeds
    book = Book()
    for line in log.read_text().splitlines():
        what, gpus, share = json.loads(line)
        (book.enter if what == "in" else book.leave)(tuple(gpus), share)
    assert not book.wrong, seeds
    assert book.leases == 15 * len(workers)


HOLDER = """
import sys, time
from pytest_cudafork.gpus.locks import LockFolder
held = LockFolder(sys.argv[1]).acquire(["GPU-0", "GPU-1"], 2, share=False, wait=240, test="test_a")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process, which has both GPUs."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_locks_of_a_killed_process_are_free_and_its_name_is_forgotten(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    folder = LockFolder(str(tmp_path))
    try:
        with pytest.raises(WaitedTooLong) as caught:
            folder.acquire(["GPU-0", "GPU-1"], 1, share=True, wait=0.2, test="mine")
        assert f"GPU-0 is held by process {holder.pid} for test_a" in str(caught.value)
        assert "1 of 2 GPUs to share were not free within 0.2 s" in str(caught.value)
    finally:
        holder.kill()
        holder.communicate()
    assert folder.holders(["GPU-0", "GPU-1"]) == []
    folder.acquire(["GPU-0", "GPU-1"], 2, share=False, wait=LIMIT, test="mine").release()


def test_where_sessions_of_a_killed_test_locked_is_swept_with_its_entry(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    folder = LockFolder(str(tmp_path))
    mine = folder.acquire(["GPU-9"], 1, share=False, wait=LIMIT, test="mine")
    (note,) = [path for path in tmp_path.glob("*.holder") if path.name.startswith(f"{holder.pid}-")]
    inner = [tmp_path / mine.mark, tmp_path / f"cudafork-lease-{note.stem}"]
    for path in inner:
        LockFolder(str(path)).acquire(GPUS, 1, share=False, wait=LIMIT, test="inner")
    holder.kill()
    holder.communicate()
    folder.holders(GPUS)
    assert [path.exists() for path in inner] == [True, False]
    mine.release()


def test_a_test_gets_the_gpu_as_soon_as_it_is_given_back(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    first = folder.acquire(GPUS, 3, share=False, wait=1, test="first")
    timer = threading.Timer(0.1, first.release)
    timer.start()
    second = folder.acquire(GPUS, 1, share=False, wait=LIMIT, test="second")
    timer.join()
    assert len(second.gpus) == 1, "which one: they are given back one after the other"
    second.release()


def somebody_is_in_line(folder: LockFolder) -> bool:
    """Whether not even a free GPU can be had, for others wait."""
    try:
        folder.acquire(GPUS, 1, share=False, wait=0, test="probe").release()
    except WaitedTooLong as error:
        return "other tests wait ahead of this one" in str(error)
    return False


def test_who_needs_many_gpus_is_not_overtaken_by_those_who_need_one(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    one = folder.acquire(GPUS, 1, share=False, wait=1, test="one")
    order: list[str] = []

    def want(name: str, n: int) -> Callable[[], None]:
        def work() -> None:
            held = LockFolder(str(tmp_path)).acquire(GPUS, n, share=False, wait=LIMIT, test=name)
            order.append(name)
            held.release()

        return work

    many = threading.Thread(target=want("many", 3))
    many.start()
    deadline = time.monotonic() + LIMIT
    while not somebody_is_in_line(folder):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    others = [threading.Thread(target=want("later", 1)) for _ in range(3)]
    for other in others:
        other.start()
    time.sleep(0.1)
    assert order == []  # though two GPUs are free
    one.release()
    for thread in (many, *others):
        thread.join(LIMIT)
    assert order == ["many", "later", "later", "later"]


def test_those_who_share_spread_over_the_gpus(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    held = [folder.acquire(GPUS, 1, share=True, wait=1, test=str(i)) for i in range(6)]
    assert sorted(gpu for one in held for gpu in one.gpus) == sorted([*GPUS, *GPUS])


GIB = 1 << 30
SIZES = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}


def take(folder: LockFolder, memory: int, n: int = 1, **about: Any) -> Held:
    """Take GPUs with so many GiB, if they are free."""
    about = {"sizes": SIZES, "wait": 0.0, **about}
    return folder.acquire(
        tuple(SIZES), n, share=False, test=f"{memory} GiB", memory=memory * GIB, **about
    )


def test_a_gpu_is_shared_as_far_as_its_memory_goes(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    held = [take(folder, 50), take(folder, 50), take(folder, 30), take(folder, 29)]
    assert [one.gpus for one in held] == [("GPU-0",), ("GPU-1",), ("GPU-0",), ("GPU-1",)]
    with pytest.raises(
        WaitedTooLong, match=r"1 of 2 GPUs with 2 GiB free .* for 50 GiB;"
    ) as caught:
        take(folder, 2)
    assert f"GPU-1 is held by process {os.getpid()} for 29 GiB" in str(caught.value)
    take(folder, 1).release()
    for share in (True, False):  # they have said nothing of memory
        with pytest.raises(WaitedTooLong):
            folder.acquire(tuple(SIZES), 1, share=share, wait=0, test="t", sizes=SIZES)
    held[2].release()
    take(folder, 1, n=2).release()
    for one in held:
        one.release()
    assert [path.name for path in tmp_path.iterdir()] == ["table.lock"]


def test_memory_that_strangers_hold_is_not_given_away(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    in_use = {"GPU-0": 60 * GIB, "GPU-1": 10 * GIB}
    first = take(folder, 40, used=lambda: in_use)
    assert first.gpus == ("GPU-1",)
    in_use["GPU-1"] += 35 * GIB  # the test has allocated
    take(folder, 30, used=lambda: in_use).release()
    with pytest.raises(WaitedTooLong) as caught:
        take(folder, 31, used=lambda: in_use)
    assert "GPU-0 has 60 GiB in use by others than tests" in str(caught.value)
    assert "GPU-1 has 10 GiB in use by others" in str(caught.value)
    in_use["GPU-1"] += 20 * GIB  # more than the test said, by it or by strangers
    take(folder, 20, used=lambda: in_use).release()
    with pytest.raises(WaitedTooLong):
        take(folder, 21, used=lambda: in_use)
    first.release()


def test_a_session_that_cannot_measure_takes_parts(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    held = take(folder, 21, n=2)
    with pytest.raises(WaitedTooLong):
        take(folder, 1, sizes={})
    shared = [
        folder.acquire(tuple(SIZES), 2, share=True, wait=0, test="t") for _ in range(PARTS - 3)
    ]
    with pytest.raises(WaitedTooLong):
        folder.acquire(tuple(SIZES), 2, share=True, wait=0, test="t")
    take(folder, 9, n=2).release()
    with pytest.raises(WaitedTooLong):
        take(folder, 10)
    for one in (held, *shared):
        one.release()


def test_a_holder_whose_note_is_lost_has_everything(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    held = take(folder, 1)
    for path in tmp_path.glob("*.holder"):
        path.write_text("torn {")
    with pytest.raises(WaitedTooLong, match="who holds them is not known"):
        take(folder, 1)
    held.release()
    take(folder, 80, n=2).release()


@pytest.mark.parametrize("written", [0, 1], ids=["the first time", "as it takes its cards"])
def test_who_cannot_write_its_note_is_told_so_and_keeps_nobody_waiting(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LockFolder(str(tmp_path))
    held = take(folder, 20)
    left = [*range(written)]

    def write(path: str, note: Any) -> None:
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        really_write(path, note)

    with monkeypatch.context() as patch:
        patch.setattr("pytest_cudafork.gpus.notes.write", write)
        with pytest.raises(LocksUnusable, match="No space left on device; set TMPDIR to a folder"):
            take(folder, 20, wait=LIMIT)
    assert len(list(tmp_path.glob("*.entry"))) == 1
    take(folder, 60).release()
    held.release()
    assert [path.name for path in tmp_path.iterdir()] == ["table.lock"]


def test_a_folder_that_was_swept_is_made_for_the_user_alone_again(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    folder = LockFolder(str(path))
    take(folder, 20).release()
    shutil.rmtree(path)
    before = os.umask(0o002)
    try:
        take(folder, 20).release()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    take(LockFolder(str(path)), 20).release()


def test_one_who_waits_for_much_is_not_passed_for_ever(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    small = take(folder, 20, n=2)
    got = threading.Event()

    def want() -> None:
        held = take(LockFolder(str(tmp_path)), 70, n=2, wait=LIMIT)
        got.set()
        held.release()

    big = threading.Thread(target=want)
    big.start()
    while len(list(tmp_path.glob("*.holder"))) < 2:
        time.sleep(0.01)
    for _ in range(MOST_OVERTAKEN):
        take(folder, 20).release()
    with pytest.raises(WaitedTooLong, match="other tests wait ahead of this one"):
        take(folder, 20)
    small.release()
    big.join(LIMIT)
    assert got.is_set()


def test_a_stopped_process_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LockFolder(str(tmp_path))
    held = take(folder, 80, n=2)
    wish = Wish(2, tuple(SIZES))
    with folder._waiting(wish, "stopped", 0.0):
        monkeypatch.setattr("pytest_cudafork.gpus.locks._SILENT_SECONDS", 0.2)
        held.release()
        take(folder, 80, n=2, wait=LIMIT).release()


def test_a_table_that_nobody_gives_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cudafork.gpus.locks._TABLE_SECONDS", 0.05)
    folder = LockFolder(str(tmp_path))
    with (
        folder._table(),
        pytest.raises(LocksUnusable, match=r"has kept '.*table\.lock' for 0.05 s"),
    ):
        take(LockFolder(str(tmp_path)), 1)


def test_what_is_in_use_is_measured_while_others_may_have_the_table(tmp_path: Path) -> None:
    folder, asked = LockFolder(str(tmp_path)), []

    def measure() -> dict[str, int]:
        with LockFolder(str(tmp_path))._table():  # the driver may take its time to answer
            asked.append(1)
        return {}

    held = take(folder, 50, n=2, used=measure)
    assert len(asked) == 1
    with pytest.raises(WaitedTooLong, match="is held by process"):
        take(folder, 40, used=measure)
    assert len(asked) == 2
    held.release()


def test_nothing_is_measured_for_one_who_cannot_have_its_cards_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cudafork.gpus.locks._LONGEST_PAUSE", 0.0)
    folder, asked = LockFolder(str(tmp_path)), []
    held = take(folder, 50, n=2)

    def measure() -> dict[str, int]:
        asked.append(1)
        return {}

    with pytest.raises(WaitedTooLong):
        take(folder, 40, wait=0.3, used=measure)
    assert len(asked) == 1  # for the complaint
    held.release()


def test_what_is_taken_or_given_back_during_the_measurement_is_not_given_away(
    tmp_path: Path,
) -> None:
    folder, sizes = LockFolder(str(tmp_path)), {"GPU-0": 80 * GIB}
    in_use = 0
    first: list[Held] = []

    def another_comes() -> dict[str, int]:
        nonlocal in_use
        if not first:
            first.append(take(LockFolder(str(tmp_path)), 50, sizes=sizes))
            in_use = 50 * GIB
        return {"GPU-0": in_use}

    def first_goes() -> dict[str, int]:
        found = {"GPU-0": in_use}
        first.pop().release()
        return found

    cards = ("GPU-0",)
    about: dict[str, Any] = {"share": False, "wait": 0.0, "test": "t", "sizes": sizes}
    with pytest.raises(WaitedTooLong):
        folder.acquire(cards, 1, memory=40 * GIB, used=another_comes, **about)
    with pytest.raises(WaitedTooLong):  # it may have been a stranger's
        folder.acquire(cards, 1, memory=40 * GIB, used=first_goes, **about)
    held = folder.acquire(cards, 1, memory=30 * GIB, used=dict, **about)
    (note,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.holder")]
    assert note["others"] == {"GPU-0": 0}
    held.release()


def test_who_waits_looks_again_when_somebody_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cudafork.gpus.locks._LONGEST_PAUSE", LIMIT)
    first = take(LockFolder(str(tmp_path)), 80, n=2)
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            before = tmp_path.stat().st_mtime_ns
            first.release()
            while tmp_path.stat().st_mtime_ns == before:  # the clock of files has steps
                (tmp_path / "step").touch()
                (tmp_path / "step").unlink()

    monkeypatch.setattr("pytest_cudafork.gpus.locks.time.sleep", sleep)
    take(LockFolder(str(tmp_path)), 80, n=2, wait=LIMIT).release()
    assert len(pauses) == 3


def test_a_forked_child_gives_nothing_back(tmp_path: Path) -> None:
    folder = LockFolder(str(tmp_path))
    held = folder.acquire(GPUS, 3, share=False, wait=1, test="parent")
    pid = os.fork()
    if pid == 0:
        try:
            held.release()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(WaitedTooLong, match="held by process"):
        LockFolder(str(tmp_path)).acquire(GPUS, 1, share=False, wait=0.05, test="other")
    held.release()


def test_an_interrupted_wait_leaves_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LockFolder(str(tmp_path))
    held = folder.acquire(GPUS, 3, share=False, wait=1, test="first")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pytest_cudafork.gpus.locks.time.sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            folder.acquire(GPUS, 1, share=False, wait=LIMIT, test="second")
    held.release()
    folder.acquire(GPUS, 3, share=False, wait=0, test="third").release()


def test_a_folder_that_is_none_is_refused_with_a_way_out(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(LocksUnusable, match=r"is not a folder of user .* or set TMPDIR"):
        LockFolder(str(link))
    (tmp_path / "file").touch()
    with pytest.raises(LocksUnusable, match="set TMPDIR"):
        LockFolder(str(tmp_path / "file" / "folder"))


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("_CUDAFORK_GPU_LOCKS", raising=False)
    path = Path(user_folder())
    assert path == tmp_path / f"pytest-cudafork-gpus-{os.getuid()}"
    LockFolder(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("_CUDAFORK_GPU_LOCKS", "/elsewhere")
    assert user_folder() == "/elsewhere"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_in_which_others_may_write_locks_nothing(mode: int, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(LocksUnusable, match=f"other users may write there .mode {mode:o}.; remove"):
        LockFolder(str(folder))


def test_a_link_laid_where_the_folder_belongs_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocksUnusable, match="is not a folder of user"):
        LockFolder(str(tmp_path / "locks"))
    assert not list((tmp_path / "elsewhere").iterdir())
