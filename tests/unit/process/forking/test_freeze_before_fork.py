"""Tests of what makes a process cheap and safe to fork, tried on this process."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.forking.freeze_before_fork import Collapse, OpenMP


@pytest.fixture(autouse=True)
def _a_collector_of_its_own() -> Iterator[None]:
    """Begin with nothing frozen; afterwards all is again (``tests/support/frozen_objects.py``)."""
    enabled = gc.isenabled()
    gc.unfreeze()
    yield
    (gc.enable if enabled else gc.disable)()


def test_frozen_objects_are_left_alone_by_a_collector_that_is_on_again() -> None:
    gc.disable()
    freeze_before_fork.freeze()
    assert gc.get_freeze_count() > 1000
    assert gc.isenabled()


def test_what_a_child_has_of_its_parent_is_frozen_there_alone() -> None:
    gc.unfreeze()
    pid = os.fork()
    if pid == 0:
        freeze_before_fork.freeze_in_child()
        os._exit(0 if gc.get_freeze_count() > 1000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert gc.get_freeze_count() == 0


class _Ring:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


def _ends_after_collection(age: int, *, frozen: bool) -> list[int]:
    """Return which generations were collected, of garbage that has survived ``age`` collections.

    The last number is 1 if it was freed. All in a child: its objects are its own.
    """
    told_r, told_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.disable()
        if frozen:
            freeze_before_fork.freeze_in_child()
        ring = _Ring()
        for generation in range(age):
            gc.collect(generation)
        collected: list[int] = []
        gone = weakref.ref(ring)
        del ring

        def note(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                collected.append(info["generation"])

        gc.callbacks.append(note)
        freeze_before_fork.collect_unfrozen()
        os.write(told_w, bytes([*collected, gone() is None]))
        os._exit(0)
    os.close(told_w)
    with open(told_r, "rb") as file:
        told = list(file.read())
    os.waitpid(pid, 0)
    return told


@pytest.mark.parametrize("age", range(3))
def test_garbage_of_any_age_is_collected(age: int) -> None:
    oldest = 2
    expected = oldest if age == 2 or sys.version_info >= (3, 14) else 1
    assert _ends_after_collection(age, frozen=True) == [expected, True]
    assert _ends_after_collection(age, frozen=False) == [oldest, True]


def _all_steps(collapse: Collapse) -> int:
    steps = 0
    while not collapse.done:
        collapse.step()
        steps += 1
    return steps


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    """Memory of this process alone, 8 MiB and in use: three whole ranges of 2 MiB at least."""
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * (8 << 20))
        yield memory


@pytest.mark.slow
def test_memory_is_folded_range_by_range_and_keeps_its_contents(memory: mmap.mmap) -> None:
    assert _all_steps(Collapse()) >= 1
    assert memory[:] == b"x" * (8 << 20)


def _addresses(memory: mmap.mmap) -> range:
    first = ctypes.c_char.from_buffer(memory)
    try:
        return range(ctypes.addressof(first), ctypes.addressof(first) + len(memory))
    finally:
        del first  # or the memory could not be given back


def test_each_range_in_use_is_advised_twice_and_an_empty_one_not_at_all(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told of two mappings of this test: what else the process has changes at any time."""
    advised: list[int] = []

    def madvise(start: int, length: int, advice: int) -> int:
        advised.append(start)
        return 0

    monkeypatch.setattr(freeze_before_fork, "_madvise", lambda: madvise)
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as empty:
        looked_at = [*freeze_before_fork._huge_ranges()]
        _all_steps(Collapse())
        full, never_written = _addresses(memory), _addresses(empty)
    assert len([start for start in looked_at if start in never_written]) >= 31
    assert [start for start in advised if start in never_written] == []
    mine = [start for start in advised if start in full]
    assert len(set(mine)) >= 3
    assert [mine.count(start) for start in set(mine)] == [2] * len(set(mine))


def test_a_kernel_that_does_not_know_how_is_asked_once(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze_before_fork, "_madvise", lambda: lambda *args: -1)
    monkeypatch.setattr(freeze_before_fork, "_errno", lambda: errno.EINVAL)
    monkeypatch.setattr(freeze_before_fork, "_mostly_present", lambda start: True)
    assert _all_steps(Collapse()) == 1


def test_without_the_call_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeze_before_fork, "_madvise", lambda: None)
    assert Collapse().done


def test_threads_are_those_of_the_operating_system() -> None:
    # in a process that has none but this test's: those of libraries begin and end at any time
    pid = os.fork()
    if pid == 0:
        release = threading.Event()
        thread = threading.Thread(target=release.wait, daemon=True)
        before = freeze_before_fork.count_threads()
        thread.start()
        os._exit(10 * before + freeze_before_fork.count_threads())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 12


def test_pools_of_each_openmp_library_that_is_loaded_are_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[tuple[str, int]] = []

    def library(path: str, mode: int) -> Any:
        if path == "/old":  # a library without the function
            return SimpleNamespace()
        return SimpleNamespace(omp_pause_resource_all=lambda kind: paused.append((path, kind)))

    monkeypatch.setattr(unpatched.ctypes, "CDLL", library)
    monkeypatch.setattr(freeze_before_fork, "_openmp_libraries", lambda: ["/old", "/new"])
    monkeypatch.setattr(freeze_before_fork, "count_threads", lambda: 4)
    OpenMP().pause()
    assert paused == [("/new", 1)]


def test_with_one_thread_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeze_before_fork, "count_threads", lambda: 1)
    monkeypatch.setattr(freeze_before_fork, "_openmp_libraries", lambda: pytest.fail("looked"))
    OpenMP().pause()


def test_libraries_of_openmp_are_found_among_the_mapped_files() -> None:
    for path in freeze_before_fork._openmp_libraries():
        assert os.path.basename(path).startswith(("libgomp", "libiomp", "libomp"))


def test_memory_is_counted_in_bytes_and_none_is_known_of_a_process_that_is_gone() -> None:
    assert freeze_before_fork.resident_bytes() > 5 << 20
    assert freeze_before_fork.bytes_beyond_ours(os.getpid()) < 5 << 20
    assert freeze_before_fork.bytes_beyond_ours(2**22 + 1) == 0
