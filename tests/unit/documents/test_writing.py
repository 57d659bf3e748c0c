"""A file is written whole or not at all; links and pipes stay what they are."""

from __future__ import annotations

import itertools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.documents import writing
from pytest_cudafork.documents.writing import (
    NotReplaced,
    json_text,
    print_json,
    printable,
    replace,
    try_to_write,
    write_at_once,
)
from tests.support.full_disk import full_disk


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("of yesterday, and longer\n")
    reader = path.open()
    write_at_once(str(path), "new\n")
    assert path.read_text() == "new\n"
    assert reader.read() == "of yesterday, and longer\n", "who reads it reads no mixture"
    reader.close()
    assert os.listdir(tmp_path) == ["r.json"]


READER = """
import sys
numbers, reads, wrong = [0], 0, []
while len(wrong) < 3 and (reads < 300 or len(set(numbers)) < 50):
    reads += 1
    try:
        with open(sys.argv[1]) as file:
            text = file.read()
    except OSError as error:
        wrong.append(repr(error))
        continue
    if not text or text != text[:9] * 20_000:
        wrong.append(f"{len(text)} characters")
    elif int(text[:9]) < numbers[-1]:
        wrong.append("an older one")
    else:
        numbers.append(int(text[:9]))
print(*wrong, sep=", ")
"""
"""Reads a file until it has seen many versions of it; says what was none, or was not there."""


def test_who_reads_while_versions_are_written_reads_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    versions = (f"{number:8}\n" * 20_000 for number in itertools.count())
    path.write_text(next(versions))
    reader = subprocess.Popen(
        [sys.executable, "-S", "-c", READER, str(path)], stdout=subprocess.PIPE, text=True
    )
    while reader.poll() is None:
        write_at_once(str(path), next(versions))
    out, _ = reader.communicate()
    assert (reader.returncode, out) == (0, "\n")
    assert os.listdir(tmp_path) == ["r.json"]


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o640])
def test_a_file_keeps_its_permissions_and_a_new_one_has_those_of_the_umask(
    tmp_path: Path, mode: int
) -> None:
    old, plain = tmp_path / "old", tmp_path / "plain"
    old.write_text("of yesterday")
    old.chmod(mode)
    plain.touch()
    for path in (old, tmp_path / "new"):
        write_at_once(str(path), "x")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, tmp_path / "new")] == [
        mode,
        stat.S_IMODE(plain.stat().st_mode),
    ]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_at_once(str(tmp_path / "link"), "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    try_to_write(str(path))  # which is no end of what is read
    with os.fdopen(fd) as reader:
        write_at_once(str(path), "through")
        assert reader.read() == "through"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    try_to_write(str(path))
    with pytest.raises(OSError, match="nobody reads this pipe"):
        write_at_once(str(path), "x")


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("of yesterday")
    try_to_write(str(path))
    assert path.read_text() == ""
    with pytest.raises(FileNotFoundError):
        try_to_write(str(tmp_path / "no" / "r"))


def test_a_file_in_a_folder_that_takes_no_other_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    path.write_text("")
    monkeypatch.setattr(unpatched.os, "urandom", bytes)
    (tmp_path / "r.00000000").mkdir()  # the name is taken
    write_at_once(str(path), "x")
    assert path.read_text() == "x"


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_at_once(str(tmp_path / "no" / "r"), "x")


def test_what_leads_to_a_pipe_is_written_though_the_pipe_has_no_name(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        write_at_once(f"/dev/fd/{write}", "through")
        assert os.read(read, 100) == b"through"
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "link"])
def test_a_file_that_is_open_here_goes_on_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Such as a log, in which ``pytest --cuda-fork-json=/dev/stdout > log`` has written."""
    path = tmp_path / "log"
    monkeypatch.chdir(tmp_path)
    with path.open("w") as log:
        os.symlink(f"/dev/fd/{log.fileno()}", "link")
        monkeypatch.setattr("sys.stdout", log)
        log.write("before\n")  # and it is not flushed
        name = name.format(log.fileno())
        try_to_write(name)
        write_at_once(name, "document\n")
        log.write("after\n")
    assert path.read_text() == "before\ndocument\nafter\n"


def test_where_there_is_no_space_the_file_of_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    path.write_text("of yesterday")
    opened = open

    class Full:
        """A file on a device that is full."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._file = opened(*args, **options)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

        def write(self, text: str) -> None:
            """Write a part."""
            self._file.write(text[:2])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "io", SimpleNamespace(open=Full))
    with pytest.raises(OSError, match="No space"):
        write_at_once(str(path), "of today")
    assert path.read_text() == "of yesterday"
    assert os.listdir(tmp_path) == ["r"]


def test_an_error_of_a_full_disk_says_which_file_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("of yesterday")
    with full_disk(), pytest.raises(OSError, match="File too large") as failed:
        write_at_once(str(path), "of today")
    assert failed.value.filename == str(path)
    assert path.read_text() == "of yesterday"
    assert os.listdir(tmp_path) == ["r"]
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_at_once("/dev/full", "of today")
    with pytest.raises(OSError, match="No such file") as failed:
        write_at_once(str(tmp_path / "no" / "r"), "x")
    assert failed.value.filename == str(tmp_path / "no" / "r")


def test_a_file_that_cannot_be_replaced_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: str) -> None:
        raise OSError(16, "Device or resource busy")  # a file that is mounted

    path = tmp_path / "r"
    path.write_text("of yesterday, and longer")
    monkeypatch.setattr(unpatched.os, "replace", refuse)
    with pytest.raises(NotReplaced, match="resource busy"):
        replace(path, "x")
    assert path.read_text() == "of yesterday, and longer"
    write_at_once(str(path), "x")
    assert path.read_text() == "x"
    assert os.listdir(tmp_path) == ["r"]


def test_json_is_valid_whatever_a_name_holds() -> None:
    name = os.fsdecode(b"s\xff") + "\ud800\udc00 \u2603"
    text = json_text({name: [name, 1, None]}, indent=None)
    assert json.loads(text.encode("utf-8")) == {
        "s\\udcff\\ud800\\udc00 \u2603": ["s\\udcff\\ud800\\udc00 \u2603", 1, None]
    }


def test_standard_output_gets_what_any_encoding_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"file": "d\u00e9j\u00e0 \U0001f40d \udcfe"}
    print_json(document)
    said = capsys.readouterr().out
    assert said.isascii()
    assert json.loads(said) == {"file": "d\u00e9j\u00e0 \U0001f40d \\udcfe"}
    monkeypatch.setattr("sys.stdout", SimpleNamespace(encoding="ascii"))
    assert printable("d\u00e9j\u00e0") == "d?j?"
    monkeypatch.setattr("sys.stdout", SimpleNamespace(encoding=None))
    assert printable("d\u00e9j\u00e0") == "d\u00e9j\u00e0"
