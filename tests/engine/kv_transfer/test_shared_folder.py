"""A shared folder lives as long as somebody uses it, however users end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_engine.kv_transfer import shared_folder
from sample_engine.kv_transfer.shared_folder import Patience, SharedFolder, folder_path
from sample_engine.kv_transfer.store import StoreError
from tests.engine.support.kv_transfer import janitors, wait_for
from tests.engine.support.process import PROJECT

USER = """
import sys
from sample_engine.kv_transfer.shared_folder import Patience, SharedFolder
folder = SharedFolder(sys.argv[1], "one")
print("ready", flush=True)
sys.stdin.read()
folder.close()
"""


@contextlib.contextmanager
def user(base: str) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the folder until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", USER, base],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def is_unlocked(path: Path) -> bool:
    """Whether nobody holds a lock of a file."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_last_user_removes_it(shm: str) -> None:
    one, two = SharedFolder(shm, "one"), SharedFolder(shm, "one")
    assert one.path == two.path == folder_path(shm, "one")
    assert one.path.stat().st_mode & 0o777 == 0o700
    assert len(janitors(shm)) == 1
    one.close()
    assert two.path.is_dir()
    two.close()
    two.close()
    assert not two.path.exists()
    wait_for(lambda: not janitors(shm), "the janitor is gone")


def test_names_are_folders_of_their_own(shm: str) -> None:
    one, two = SharedFolder(shm, "one"), SharedFolder(shm, "two")
    one.close()
    assert [entry.name for entry in os.scandir(shm)] == [two.path.name]
    two.close()


def test_of_killed_users_the_janitor_removes_it(shm: str) -> None:
    path = folder_path(shm, "one")
    with user(shm) as first, user(shm) as second:
        first.kill()
        first.wait()
        assert path.is_dir(), "the second one uses it"
        second.kill()
        second.wait()
    wait_for(lambda: not path.exists(), "the folder is gone")
    wait_for(lambda: not janitors(shm), "the janitor is gone")


def test_of_killed_janitors_the_next_one_to_open_any_removes_it(shm: str) -> None:
    with user(shm) as process:
        (janitor,) = janitors(shm)
        os.kill(janitor, signal.SIGKILL)
        wait_for(lambda: not janitors(shm), "the janitor is dead")
        process.kill()
        process.wait()
    assert folder_path(shm, "one").is_dir(), "nobody was left to remove it"
    other = SharedFolder(shm, "another")
    assert os.listdir(shm) == [other.path.name]
    other.close()


def test_a_dead_janitor_is_replaced_by_the_next_user(shm: str) -> None:
    first = SharedFolder(shm, "one")
    (janitor,) = janitors(shm)
    os.kill(janitor, signal.SIGKILL)
    # a process has no command any more before its files are closed, and with them its lock
    wait_for(lambda: not janitors(shm), "the janitor is dead")
    wait_for(lambda: is_unlocked(first.path / "janitor"), "its lock is free")
    second = SharedFolder(shm, "one")
    assert len(janitors(shm)) == 1
    first.close()
    second.close()


def test_a_user_that_ends_regularly_leaves_nothing(shm: str) -> None:
    with user(shm) as process:
        process.communicate("", timeout=120)
    assert os.listdir(shm) == []


def test_in_a_forked_child_it_is_left_alone(shm: str) -> None:
    folder = SharedFolder(shm, "one")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.is_dir()
    folder.close()


def test_one_at_a_time_changes_it_and_nobody_waits_for_ever(shm: str) -> None:
    one, two = SharedFolder(shm, "one"), SharedFolder(shm, "one")
    late = two.locked(Patience(0.0))
    with (
        one.locked(Patience(0.0)),
        pytest.raises(StoreError, match="was locked by others for 0 seconds"),
    ):
        late.__enter__()
    with two.locked(Patience(0.0)):
        pass
    one.close()
    two.close()


def test_what_is_not_this_users_is_refused(shm: str) -> None:
    path = folder_path(shm, "one")
    path.write_text("a file")
    with pytest.raises(StoreError, match="is no folder of this user"):
        SharedFolder(shm, "one")
    path.unlink()
    path.symlink_to("/tmp")
    with pytest.raises(StoreError, match="is no folder of this user"):
        SharedFolder(shm, "one")
    path.unlink()
    with pytest.raises(StoreError, match="No such file or directory"):
        SharedFolder(f"{shm}/missing", "one")


def test_a_removal_that_does_not_end_is_told(shm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder_path(shm, "one")
    path.mkdir()
    with open(path / "users", "w") as held, monkeypatch.context() as patched:
        patched.setattr(shared_folder, "_JOIN_SECONDS", 0.05)
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"locked for 0\.05 seconds by a process that removes"):
            SharedFolder(shm, "one")
    SharedFolder(shm, "one").close()


def test_a_folder_that_was_removed_by_hand_can_be_left(shm: str) -> None:
    folder = SharedFolder(shm, "one")
    for name in os.listdir(folder.path):
        (folder.path / name).unlink()
    folder.path.rmdir()
    again = SharedFolder(shm, "one")
    assert Path(again.path).is_dir()
    folder.close()
    assert again.path.is_dir(), "it is another one's now"
    again.close()
