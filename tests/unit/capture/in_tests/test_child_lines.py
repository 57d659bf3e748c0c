"""Forked children write lines that the process which runs the tests reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.capture.in_tests.child_lines import ChildLines
from tests.support.forked_work import do_in_child


@pytest.fixture
def lines() -> Iterator[ChildLines]:
    made = ChildLines()
    made.begin()
    yield made
    made.close()


def write_as_child(lines: ChildLines, number: int) -> None:
    assert lines.is_child()
    lines.write({"n": number})


def test_what_children_write_is_read_once(lines: ChildLines) -> None:
    assert not lines.is_child()
    assert list(lines.read()) == []

    def grandchild() -> None:
        write_as_child(lines, 1)
        do_in_child(lambda: write_as_child(lines, 2))

    do_in_child(grandchild)
    assert lines.waits()
    assert list(lines.read()) == [{"n": 1}, {"n": 2}]
    assert not lines.waits()
    lines.begin()  # it is there
    do_in_child(lambda: write_as_child(lines, 3))
    assert list(lines.read()) == [{"n": 3}]


def test_a_line_that_is_being_written_is_left_for_the_next_look(lines: ChildLines) -> None:
    os.write(lines._fd, b'{"n": 1}\n{"n"')
    assert list(lines.read()) == [{"n": 1}]
    assert lines.waits()
    os.write(lines._fd, b": 2}\n")
    assert list(lines.read()) == [{"n": 2}]


def test_a_child_that_runs_tests_of_its_own_has_a_file_of_its_own(lines: ChildLines) -> None:
    def isolated() -> None:
        lines.begin()
        assert not lines.is_child()
        do_in_child(lambda: write_as_child(lines, 1))
        assert list(lines.read()) == [{"n": 1}]

    do_in_child(isolated)
    assert not lines.waits()


def test_a_descriptor_that_has_become_another_file_is_left_alone(
    lines: ChildLines, tmp_path: Path
) -> None:
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    os.dup2(theirs, lines._fd)
    do_in_child(lambda: write_as_child(lines, 1))
    assert not lines.waits()
    assert (tmp_path / "theirs").read_bytes() == b""
    lost = lines._fd
    lines.begin()
    do_in_child(lambda: write_as_child(lines, 2))
    assert list(lines.read()) == [{"n": 2}]
    for each in {lost, theirs}:
        os.close(each)


def test_nothing_is_written_for_a_process_that_has_gone_or_closed_it(lines: ChildLines) -> None:
    def without_it() -> None:
        os.close(lines._fd)  # that of the child alone
        write_as_child(lines, 1)

    do_in_child(without_it)
    assert list(lines.read()) == [{"n": 1}]
    lines.close()
    assert (lines.is_child(), lines.waits()) == (False, False)
    lines._owner = -1
    lines.write({"n": 2})
