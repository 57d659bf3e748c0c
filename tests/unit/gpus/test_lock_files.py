"""Lock files of the kernel: real ones, in this process and in others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork.gpus import lock_files
from pytest_cudafork.gpus.lock_files import (
    KeptTooLong,
    is_void,
    keeper_of,
    kept,
    new_lock,
    try_lock,
)

KEEPS = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("kept", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["the process", "the object", "released"])
def test_a_forked_child_does_not_free_the_lock_of_its_parent(end: str, tmp_path: Path) -> None:
    path = str(tmp_path / "a.lock")
    program = """
import gc, os, sys
from pytest_cudafork.gpus.lock_files import is_void, new_lock, try_lock
path, end = sys.argv[1:]
lock = new_lock(path)
assert try_lock(lock)
pid = os.fork()
if pid == 0:
    if end == "released":
        lock.release()
    if end == "the object":
        del lock
        gc.collect()
        os._exit(0)
    sys.exit()
os.waitpid(pid, 0)
assert not is_void(path)
lock.release()
assert is_void(path)
"""
    subprocess.run([sys.executable, "-c", program, path, end], check=True, timeout=300)


def test_a_lock_is_taken_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a.lock")
    assert is_void(path)
    first, second = new_lock(path), new_lock(path)
    assert try_lock(first)
    assert not try_lock(second)
    assert not is_void(path)
    first.release()
    assert is_void(path)
    assert try_lock(second)
    second.release()


def test_what_is_kept_is_free_after_the_block_whatever_happens_in_it(tmp_path: Path) -> None:
    path = str(tmp_path / "a.lock")

    def fails() -> None:
        with kept(path, 60):
            assert not is_void(path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert is_void(path)


def test_who_keeps_a_lock_is_named_and_is_free_of_it_when_it_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "a.lock")
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPS, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        assert keeper_of(path) in (process.pid, 0)  # 0 where /proc/locks is another's
        words = rf"(process {process.pid} \(.*\)|another process) has kept .*a\.lock' for 0.01 s"
        with pytest.raises(KeptTooLong, match=words), kept(path, 0.01):
            pass
    finally:
        process.kill()
        process.communicate()
    with kept(path, 60):
        pass


def test_the_kernels_list_is_read(tmp_path: Path) -> None:
    path, locks = tmp_path / "a.lock", tmp_path / "locks"
    assert keeper_of(str(path)) == 0
    path.touch()
    inode = os.stat(path).st_ino
    locks.write_text(
        f"1: POSIX  ADVISORY  WRITE 11 08:01:{inode} 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE 12 08:01:{inode + 1} 0 EOF\n"
        f"3: FLOCK  ADVISORY  WRITE 13 08:01:{inode} 0 EOF\n"
        f"3: -> FLOCK  ADVISORY  WRITE 14 08:01:{inode} 0 EOF\n"
    )
    assert keeper_of(str(path), str(locks)) == 13
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE -1 08:01:{inode} 0 EOF\n")  # of another namespace
    assert keeper_of(str(path), str(locks)) == 0
    for torn in ("1: FLOCK", "1: FLOCK a b c d e f", ""):
        locks.write_text(torn)
        assert keeper_of(str(path), str(locks)) == 0
    assert keeper_of(str(path), str(tmp_path / "none")) == 0
    assert lock_files._named(0) == "another process"
