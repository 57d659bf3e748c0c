"""The fields of a process, whatever its name is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.compat.proc_stat import PARENT, STATE, field, fields_of, is_there


@pytest.mark.parametrize("name", ["python", "a b", ") S 1 (", "\udcff"])
def test_fields_are_counted_behind_the_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_bytes(f"7 ({name}) T 3 9\n".encode(errors="surrogateescape"))
    assert fields_of(str(path)) == ["T", "3", "9"]
    assert (field(str(path), STATE), field(str(path), PARENT)) == ("T", "3")
    assert field(str(path), 3) == ""


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    assert fields_of(str(tmp_path / "gone")) == []
    assert field(str(tmp_path / "gone"), STATE) == ""
    assert field("/proc/self/stat", PARENT) == str(os.getppid())


def test_a_process_is_there_until_it_is_reaped() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_there(process.pid)
    assert not is_there(process.pid)
    assert not is_there(2**70)
    assert is_there(os.getppid())


def test_a_process_of_another_user_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(unpatched.os, "kill", denied)
    assert is_there(1)
