"""A ledger for one program: made where temporary files are, and nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.observe.base import ledger_folder
from pytest_cudafork.observe.base.ledger import Ledger, LedgerError
from pytest_cudafork.programs.own_ledger import new_ledger, seen_device
from pytest_cudafork.settings import environment


@pytest.fixture(autouse=True)
def at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the standard library no more is there than where a program is about to begin."""
    monkeypatch.delitem(sys.modules, "tempfile")


def test_a_temporary_one_is_removed_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in environment.TEMPORARY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with contextlib.ExitStack() as undo:
        path = new_ledger(undo)
        assert Path(path).parent.parent == tmp_path
        assert "temporary" in Path(path).read_text()
        Ledger(path).append("x")
        assert [record["k"] for record in Ledger(path).reader().new()] == ["x"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", [True, False])
def test_a_program_of_root_may_become_another_user_and_nobody_else_finds_it(
    root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpatched.os, "geteuid", lambda: 0 if root else 1000)
    # The file belongs to whoever runs this test, who may be root and say here to be another.
    monkeypatch.setattr(Ledger, "_check_own", lambda ledger, owner: None)
    with contextlib.ExitStack() as undo:
        path = Path(new_ledger(undo, str(tmp_path)))
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)]
        assert modes == ([0o666, 0o711] if root else [0o600, 0o700])
        assert (path.name != "ledger.jsonl") is root


def test_one_that_is_named_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "kept")
    with contextlib.ExitStack() as undo:
        assert new_ledger(undo, path=path) == path
    assert os.path.isfile(path)
    (tmp_path / "other").write_text("a file of somebody's")
    with contextlib.ExitStack() as undo, pytest.raises(LedgerError, match="no ledger"):
        new_ledger(undo, path=str(tmp_path / "other"))


def test_another_folder_is_taken_where_one_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in environment.TEMPORARY:
        monkeypatch.setenv(name, str(tmp_path / "nosuch"))
    monkeypatch.setattr(ledger_folder, "_TEMPORARY", (str(tmp_path),))
    with contextlib.ExitStack() as undo:
        assert Path(new_ledger(undo)).is_relative_to(tmp_path)
    monkeypatch.setattr(ledger_folder, "_TEMPORARY", ())
    with contextlib.ExitStack() as undo, pytest.raises(FileNotFoundError):
        new_ledger(undo)


def test_the_device_is_a_word_of_the_option() -> None:
    assert seen_device("none") == "none"
    assert seen_device("phantom:sm_90") == "sm_90"
    with pytest.raises(ValueError, match="is not a device"):
        seen_device("tpu")
