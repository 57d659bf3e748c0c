"""A file is written whole or not at all; links and pipes stay what they are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pytest_cudafork.documents.writing import write_at_once


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("of yesterday, and longer\n")
    reader = path.open()
    write_at_once(str(path), "new\n")
    assert path.read_text() == "new\n"
    assert reader.read() == "of yesterday, and longer\n", "who reads it reads no mixture"
    reader.close()
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_at_once(str(tmp_path / "link"), "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_at_once(str(path), "through")
    reader.join(60)
    assert read == ["through"]


def test_a_file_in_a_folder_that_takes_no_other_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    path.write_text("")
    (tmp_path / f"r.{os.getpid()}").mkdir()  # the name is taken
    write_at_once(str(path), "x")
    assert path.read_text() == "x"


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_at_once(str(tmp_path / "no" / "r"), "x")
