"""The fields of a process, whatever its name is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cudafork.compat.proc_stat import PARENT, STATE, field, fields_of


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
