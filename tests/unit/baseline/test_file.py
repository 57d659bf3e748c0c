"""The file of a baseline: rows as they were written, errors with lines, whole or not at all."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.baseline.file import (
    BaselineError,
    BaselineFile,
    Row,
    alone,
    check_writable,
    text_of,
    write,
)
from pytest_cudafork.compat import unpatched

EXAMPLE = '[group]\n"key" = "value"'
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROWS = st.lists(st.builds(Row, TEXT, TEXT, TEXT), unique_by=lambda row: row[:2], max_size=8)


def read(path: Path) -> BaselineFile:
    """Read a file with words for errors that show where they come from."""
    return BaselineFile.read(path, "--update", EXAMPLE)


@given(ROWS)
def test_rows_are_read_as_they_were_written(rows: list[Row]) -> None:
    rows.sort()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "base.toml")
        write(path, text_of(rows, "# what it is\n"))
        assert list(read(path).rows) == rows
        assert path.read_text(encoding="utf-8").startswith("# what it is\n")


def test_half_a_character_does_not_keep_a_file_from_being_written(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", text_of([Row("a\udcff", "b", "c")], ""))
    assert read(tmp_path / "base.toml").rows == (Row("a?", "b", "c"),)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'# a\n[vllm]\n"vllm.a" = \n', "3: is not TOML"),
        (b'[vllm]\n"a" = "\xff"\n', "2: is not UTF-8"),
        (b'\n[vllm]\n"a b" = 3\n', '3: \'a b\' wants text: "key" = "value".'),
        (b'\n"a" = "x"\n[vllm]\n', "2: 'a' stands outside a table such as [group]."),
        (b"'\\u0061' = 1", "1: "),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "base.toml"
    path.write_bytes(data)
    with pytest.raises(BaselineError) as told:
        read(path)
    assert str(told.value).startswith(f"{path}:{words}")


def test_a_file_that_is_missing_or_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"no such baseline\. Create it with --update\.$"):
        read(tmp_path / "base.toml")
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(BaselineError, match=r"is a pipe or a device, and no plain file\.$"):
        read(tmp_path / "pipe.toml")
    with pytest.raises(BaselineError, match="cannot be written: No such file"):
        write(tmp_path / "no" / "folder.toml", "")


@pytest.mark.parametrize("value", ["[" * 5_000, "9" * 10_000], ids=["nested", "long"])
def test_a_value_without_end_is_told(tmp_path: Path, value: str) -> None:
    path = tmp_path / "base.toml"
    path.write_text(f"a = {value}")
    with pytest.raises(BaselineError, match=r"base\.toml: is no baseline: "):
        read(path)


def test_a_link_that_leads_nowhere_is_told_with_what_can_be_done(tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "gone.toml")
    with pytest.raises(BaselineError) as told:
        read(link)
    assert str(told.value) == (
        f"{link}: is a link to {tmp_path}/gone.toml, and there is nothing. Bring that file back, "
        "let the link lead to another, or remove the link."
    )


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "base.toml", tmp_path / "link.toml"
    path.write_text("# old\n")
    path.chmod(0o640)
    link.symlink_to(path.name)
    write(link, "# new\n")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("# new\n", 0o640)

    def refuse(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpatched.os, "replace", refuse)
    with pytest.raises(BaselineError, match="No space left"):
        write(path, "# newer\n")
    assert path.read_text() == "# new\n"
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_two_sessions_change_a_file_one_after_the_other(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with alone(tmp_path / "base.toml"), pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
    with alone(tmp_path / "no" / "such" / "file.toml"):
        pass  # writing it will say what is wrong
    assert list(tmp_path.iterdir()) == []


def test_who_keeps_the_folder_for_long_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cudafork.baseline.file._LOCK_SECONDS", 0.05)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # as ``flock . pytest`` does, whose own lock it would wait for
    try:
        with alone(tmp_path / "base.toml"):
            write(tmp_path / "base.toml", "# new\n")
    finally:
        os.close(fd)
    assert (tmp_path / "base.toml").read_text() == "# new\n"


def test_whether_a_file_can_be_written_is_known_before(tmp_path: Path) -> None:
    path = tmp_path / "base.toml"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []
    write(path, "")
    check_writable(path)
    assert list(tmp_path.iterdir()) == [path]
    for wrong, words in (
        (tmp_path, "cannot be written: it is a folder"),
        (tmp_path / "no" / "base.toml", "cannot be written: there is no folder '.*/no'"),
        (path / "base.toml", "cannot be written: there is no folder '.*/base.toml'"),
        (Path("/proc/base.toml"), "cannot be written: no file can be made beside it: "),
    ):
        with pytest.raises(BaselineError, match=words):
            check_writable(wrong)
