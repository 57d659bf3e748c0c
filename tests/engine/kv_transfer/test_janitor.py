"""What the janitor removes, and what it leaves alone; that it waits is in test_shared_folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sample_engine.kv_transfer import janitor


def made(folder: Path) -> Path:
    folder.mkdir()
    for name in ("users", "block-1", "lock"):
        (folder / name).touch()
    return folder


def test_it_removes_what_nobody_uses(tmp_path: Path) -> None:
    folder, elsewhere = made(tmp_path / "one"), made(tmp_path / "elsewhere")
    (folder / "block-2").mkdir()
    (folder / "block-2" / "link").symlink_to(elsewhere)
    users = janitor.open_users(str(folder))
    assert users is not None
    try:
        janitor.wait_and_remove(users, str(folder))
    finally:
        os.close(users)
    assert not folder.exists()
    assert sorted(os.listdir(elsewhere)) == ["block-1", "lock", "users"]


def test_a_folder_that_is_gone_needs_nothing(tmp_path: Path) -> None:
    assert janitor.open_users(str(tmp_path / "missing")) is None


def test_it_knows_a_folder_that_was_made_anew(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    users = os.open(folder / "users", os.O_RDWR)
    try:
        fcntl.flock(users, fcntl.LOCK_EX)
        assert janitor.is_the_same(users, str(folder))
        janitor.remove(str(folder))
        assert not janitor.is_the_same(users, str(folder))
        made(folder)
        assert not janitor.is_the_same(users, str(folder))
        janitor.wait_and_remove(users, str(folder))
        assert folder.exists(), "it is another one's"
    finally:
        os.close(users)
