"""What was read from the capture is in a memory file until it is reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.isolate import captured_output
from pytest_cudafork.process.protocol import frames

PRINTED = [("Captured stdout call", "h\u00e4lf \udc80\n")]
LOGGED = [("Captured log teardown", "logged")]


@pytest.fixture
def made() -> Iterator[captured_output.Kept]:
    made = captured_output.Kept()
    number = made.fd
    yield made
    os.close(number)


def test_what_is_kept_is_there_by_phase_until_the_next_test(made: captured_output.Kept) -> None:
    assert captured_output.kept(made.fd) == []
    made.keep("call", PRINTED)
    made.keep("teardown", LOGGED)
    assert captured_output.kept(made.fd) == [("call", PRINTED), ("teardown", LOGGED)]
    made.begin()
    assert captured_output.kept(made.fd) == []
    made.keep("call", LOGGED)
    assert captured_output.kept(made.fd) == [("call", LOGGED)]


def test_who_has_the_file_can_empty_it(made: captured_output.Kept) -> None:
    made.keep("call", PRINTED)
    captured_output.forget(made.fd)
    captured_output.forget(made.fd)
    assert captured_output.kept(made.fd) == []


def test_what_a_plugin_has_put_in_that_is_no_text_is_kept_as_text(
    made: captured_output.Kept,
) -> None:
    section: Any = ("Captured numbers call", 12)
    made.keep("call", [section])
    assert captured_output.kept(made.fd) == [("call", [("Captured numbers call", "12")])]


def test_a_file_that_a_test_has_opened_in_its_place_is_left_alone(
    made: captured_output.Kept, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text("the test's")
    with own.open("r+") as file:
        os.dup2(file.fileno(), made.fd)
        made.keep("call", PRINTED)
    assert own.read_text() == "the test's"


def test_a_phase_that_was_cut_short_costs_none_of_those_before(made: captured_output.Kept) -> None:
    made.keep("setup", PRINTED)
    made.keep("call", LOGGED)
    os.ftruncate(made.fd, os.fstat(made.fd).st_size - 1)
    assert captured_output.kept(made.fd) == [("setup", PRINTED)]


def entry(value: Any) -> bytes:
    data = frames.dumps(value)
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    "data",
    [b"", b"half", b"\0" * 16, b"\xff" * 40, entry([1]), entry(["call", [1]]), entry("call")],
)
def test_what_a_test_has_written_into_it_is_not_taken_for_output(data: bytes) -> None:
    fd = os.memfd_create("damaged")
    os.write(fd, data)
    assert captured_output.kept(fd) == []
    os.close(fd)


def test_what_is_no_file_holds_nothing() -> None:
    ends = os.pipe()
    assert captured_output.kept(ends[0]) == []
    for fd in ends:
        os.close(fd)
    assert captured_output.kept(ends[0]) == []
    captured_output.forget(ends[0])
