"""Temporary folders for ledgers: which of them nobody needs any more, and which are left alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.compat import proc_stat, unpatched
from pytest_cudafork.observe.base import ledger as ledgers
from pytest_cudafork.observe.base import ledger_folder
from pytest_cudafork.observe.base.ledger import Ledger, LedgerError
from pytest_cudafork.observe.base.ledger_folder import (
    gpu_folder,
    make_ledger,
    remove_abandoned,
    remove_ledger,
)

MAKES_ONE = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from pytest_cudafork.observe.base.ledger_folder import make_ledger
print(make_ledger("run-").path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has made a folder there, and waits."""
    command = [sys.executable, "-c", MAKES_ONE, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def path_of(maker: subprocess.Popen[str]) -> str:
    """Return its ledger."""
    assert maker.stdout is not None
    return maker.stdout.readline().strip()


def killed(maker: subprocess.Popen[str]) -> str:
    """Kill it, and return the folder that it has left."""
    path = path_of(maker)
    maker.kill()
    assert maker.wait(300) == -signal.SIGKILL
    return os.path.dirname(path)


def test_a_ledger_has_a_folder_of_its_own_until_it_is_removed(folder: Path) -> None:
    made = make_ledger("run-")
    assert Path(made.path).parent.parent == folder
    assert Path(made.path).parent.name.startswith("pytest-cudafork-run-")
    assert not made.is_abandoned
    made.append("touch")
    remove_ledger(made.path)
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(
    folder: Path, maker: subprocess.Popen[str]
) -> None:
    path = path_of(maker)
    made = make_ledger()
    assert os.path.exists(path), "it runs"
    remove_ledger(made.path)
    maker.kill()
    maker.wait(300)
    os.mkdir(os.path.join(os.path.dirname(path), ledger_folder.GPUS))
    made = make_ledger()
    assert [made.path] == [str(one) for one in folder.glob("*/*")]
    remove_ledger(made.path)


@pytest.mark.parametrize("why", ["more in it", "a link", "another user's", "another system"])
def test_what_may_be_needed_is_left_alone(
    folder: Path, maker: subprocess.Popen[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed(maker)
    if why == "more in it":
        Path(left, "notes").touch()
    elif why == "a link":
        os.rename(left, folder / "elsewhere")
        os.symlink(folder / "elsewhere", left)
    elif why == "another user's":
        monkeypatch.setattr(unpatched.os, "geteuid", lambda: -1)
    else:
        monkeypatch.setattr(ledgers, "_this_system", lambda: "after a restart")
    remove_abandoned(str(folder))
    assert os.path.exists(left)
    monkeypatch.undo()
    remove_abandoned(str(folder / "no such folder"))


def test_a_ledger_that_somebody_wanted_is_left_alone(folder: Path) -> None:
    (folder / "pytest-cudafork-mine").mkdir()
    path = str(folder / "pytest-cudafork-mine" / "ledger.jsonl")
    code = (
        "import sys; from pytest_cudafork.observe.base.ledger import Ledger;"
        "Ledger(sys.argv[1]).create()"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=300)
    remove_abandoned(str(folder))
    assert os.path.exists(path)


def test_where_the_system_is_not_known_nothing_is_abandoned(
    folder: Path, maker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed(maker)
    monkeypatch.setattr(ledgers, "_this_system", lambda: "")
    remove_abandoned(str(folder))
    assert os.path.exists(left)


def test_a_maker_at_which_no_descriptor_is_left_to_look_is_not_gone(
    folder: Path, maker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(maker)
    monkeypatch.setattr(proc_stat, "fields_of", lambda path: [])
    remove_abandoned(str(folder))
    assert os.path.exists(path)
    with pytest.raises(LedgerError, match="is still running"):
        Ledger(path).create()
    maker.kill()
    maker.wait(300)
    remove_abandoned(str(folder))
    assert not os.path.exists(path)


def test_a_folder_whose_ledger_cannot_be_made_is_not_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Ledger, *, temporary: bool) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(Ledger, "create", refuse)
    with pytest.raises(OSError, match="no space is left"):
        make_ledger()
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_full_is_passed_by_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``run`` looks for one, which begins a program without the module ``tempfile``."""
    full, other = tmp_path / "full", tmp_path / "other"
    full.mkdir()
    other.mkdir()
    written = unpatched.os.write

    def write(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(full)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(fd, data)

    monkeypatch.setattr(unpatched.os, "write", write)
    monkeypatch.setattr(ledger_folder, "_temporary_folders", lambda: [str(full), str(other)])
    made = make_ledger("run-")
    assert Path(made.path).parent.parent == other
    assert list(full.iterdir()) == []
    remove_ledger(made.path)
    monkeypatch.setattr(ledger_folder, "_temporary_folders", lambda: [str(full)])
    with pytest.raises(OSError, match=f"No space left on device: '{full}/"):
        make_ledger("run-")
    assert list(full.iterdir()) == []


def test_locks_lie_beside_a_ledger_that_was_made_here(folder: Path) -> None:
    made = make_ledger()
    assert gpu_folder(made.path) == str(Path(made.path).with_name("gpus"))
    assert gpu_folder(str(folder / "ledger.jsonl")) is None
    assert gpu_folder(str(folder / "pytest-cudafork-x" / "other.jsonl")) is None
    remove_ledger(made.path)
