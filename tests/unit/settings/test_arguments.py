"""What functions of the package may be given."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.settings.arguments import (
    check_new_file,
    check_new_files,
    check_old_file,
    check_time_limit,
    check_variable,
    check_variables,
    input_bytes,
)


@pytest.mark.parametrize("timeout", [None, 1, 0.5, math.inf])
def test_seconds_above_0_are_a_time_limit(timeout: object) -> None:
    check_time_limit(timeout)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (0, ValueError),
        (-1.0, ValueError),
        (math.nan, ValueError),
        ("3", TypeError),
        (True, TypeError),
        ([3], TypeError),
    ],
)
def test_other_things_are_none(timeout: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"timeout=.* or None for none"):
        check_time_limit(timeout)


def test_variables_are_texts_or_taken_away() -> None:
    check_variables("env", {"A": "", "B": None, "C": "x=y", "D": "\udcff"})


@pytest.mark.parametrize(
    ("variables", "error", "words"),
    [
        ("A=x", TypeError, "env='A=x': variables are given as a dict"),
        ([("A", "x")], TypeError, "variables are given as a dict"),
        ({"A": 1}, TypeError, "the variable A is to be 1"),
        ({b"A": "x"}, TypeError, "the name of a variable is a text, not b'A'"),
        ({"A=": None}, ValueError, "no environment can hold that"),
    ],
)
def test_what_are_no_variables_is_told(variables: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_variables("env", variables)


@pytest.mark.parametrize(("name", "text"), [("", "x"), ("A", "\0"), ("A\0", ""), ("A", "\ud800")])
def test_what_no_environment_holds_is_told(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="no environment can hold that"):
        check_variable(name, text)


@pytest.mark.parametrize("given", ["\xe9", b"\xc3\xa9", bytearray(b"\xc3\xa9")])
def test_input_is_text_or_bytes(given: object) -> None:
    assert input_bytes(given) == b"\xc3\xa9"


def test_what_is_no_input_is_told() -> None:
    with pytest.raises(TypeError, match="stdin=3: what a script reads is a text or bytes"):
        input_bytes(3)
    with pytest.raises(ValueError, match="cannot be written as UTF-8"):
        input_bytes("\ud800")


@pytest.mark.parametrize("begin", [b"", b"{}", b"CUDA and fork"])
def test_a_report_may_be_written_over(begin: bytes, tmp_path: Path) -> None:
    (tmp_path / "report").write_bytes(begin)
    check_new_file(str(tmp_path / "report"))
    check_new_file(str(tmp_path / "new"))
    check_new_file("in this folder")
    check_new_file(os.devnull)


@pytest.mark.parametrize(
    ("name", "begin", "words"),
    [
        (
            "serve.py",
            b"",
            "is a Python file, .*: name the file to write first, as in --x=FILE .*py",
        ),
        ("serve", b"#!/bin/sh\n", "is a program, and would be written over"),
        ("serve", b"\x7fELF\x02", "is a program"),
    ],
)
def test_no_program_is_written_over(name: str, begin: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(begin)
    with pytest.raises(ValueError, match=words):
        check_new_file(str(tmp_path / name), "--x")


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_new_file(str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("path", "words"),
    [("no/file", "no folder 'no'"), (".", "is a folder"), ("a\0b", "cannot be the name")],
)
def test_what_can_be_no_file_is_told(path: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_new_file(path)


def test_no_two_options_name_one_file_but_for_pipes_and_devices(tmp_path: Path) -> None:
    here, there = str(tmp_path / "a"), str(tmp_path / "b")
    check_new_files([("--x", here), ("--y", there), ("--z", "")], {"--other": "", "--more": ""})
    (tmp_path / "link").symlink_to(here)
    same = {
        "--y: .*/a' is the file of --x, too": ([("--x", here), ("--y", here)], {}),
        "--x: .*/link' is the file of --other, too": (
            [("--x", str(tmp_path / "link"))],
            {"--other": here},
        ),
    }
    for words, (files, others) in same.items():
        with pytest.raises(ValueError, match=words):
            check_new_files(files, others)
    check_new_files([("--x", os.devnull), ("--y", os.devnull)], {"--other": os.devnull})
    with pytest.raises(ValueError, match=r"^--y: there is no folder "):
        check_new_files([("--x", here), ("--y", str(tmp_path / "no/file"))], {})


def test_what_is_read_is_a_file_or_has_a_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "file").write_text("")
    for path in ("file", "", "nowhere", "nul\0"):
        check_old_file(str(tmp_path / path))
    for path in (str(pipe), "/dev/zero"):
        with pytest.raises(ValueError, match="is a pipe or a device"):
            check_old_file(path)
    reading, writing = os.pipe()
    try:
        check_old_file(f"/dev/fd/{reading}")
        with pytest.raises(ValueError, match="is a pipe or a device"):
            check_old_file(f"/dev/fd/{reading}", once=False)
    finally:
        os.close(reading)
        os.close(writing)
