"""Tests of patches as they travel."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pytest_cudafork.patch.applying import records
from pytest_cudafork.patch.applying.records import Record


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = [
        Record("setattr", "a.b", "C.d", value=b"1", raising=False),
        Record("delenv", "", "NAME"),
        Record("setattr", "a", "b", value=b"2", search=("/one", "/two\udcff")),
    ]
    records.write(str(tmp_path), made)
    assert records.read(str(tmp_path)) == made
    records.write(str(tmp_path), made[:1])
    assert records.read(str(tmp_path)) == made[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["patches"]


def test_a_folder_that_is_gone_has_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        records.read(str(tmp_path / "gone"))


def test_complaints_of_all_folders_of_a_test_are_gathered_and_told_once(tmp_path: Path) -> None:
    test = str(tmp_path)
    assert records.take_complaints(test) == ""
    folders = [records.make_folder(test), records.make_folder(test)]
    assert len(set(folders)) == 2
    for folder, text in zip(folders, ("first", "second"), strict=True):
        records.complain(folder, text)
    first, second = records.take_complaints(test).splitlines()
    assert first.endswith(": first")
    assert second.endswith(": second")
    assert records.take_complaints(test) == ""
    records.complain(str(tmp_path / "gone" / "too"), "nobody asks")


def test_messages_say_the_call() -> None:
    assert str(Record("setattr", "a.b", "C.d")) == "child_patch.setattr('a.b.C.d')"
    assert str(Record("setenv", "", "NAME")) == "child_patch.setenv('NAME')"
    item = Record("delitem", "a", "B", key=pickle.dumps("key"))
    assert str(item) == "child_patch.delitem('a.B', 'key')"
    assert str(Record("delitem", "a", "B", key=b"torn")) == "child_patch.delitem('a.B')"
