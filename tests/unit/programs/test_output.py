"""What is kept of a stream: all of it, or its beginning and its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.programs.output import KeptOutput

MOST = 10


@pytest.fixture
def output() -> Iterator[KeptOutput]:
    made = KeptOutput(MOST)
    yield made
    made.close()


def write(output: KeptOutput, data: bytes) -> None:
    """Write as the program would, and read it."""
    os.write(output.write_fd, data)
    output.take()


def test_nothing_written_is_nothing_kept(output: KeptOutput) -> None:
    output.take()
    assert (output.data, output.total, output.left_out) == (b"", 0, 0)


def test_the_end_of_the_stream_closes_it(output: KeptOutput) -> None:
    write(output, b"last words")
    assert output.fileno() >= 0
    output.given_away()
    output.given_away()
    output.take_rest()
    assert output.fileno() == -1
    output.take_rest()
    assert output.data == b"last words"


def test_what_others_may_still_write_is_not_waited_for(output: KeptOutput) -> None:
    os.write(output.write_fd, b"a")
    output.take_rest()
    assert (output.data, output.fileno() >= 0) == (b"a", True)


def test_of_a_flood_beginning_and_end_are_kept(output: KeptOutput) -> None:
    write(output, b"beginning!")
    for _ in range(1000):
        write(output, b"x" * 1000)
    write(output, b"the end...")
    assert output.data == b"beginning!\n... 1000000 bytes are left out here ...\nthe end..."
    assert output.total == 1000020


@given(st.lists(st.binary(min_size=1, max_size=15), max_size=6))
def test_all_bytes_are_kept_or_counted(chunks: list[bytes]) -> None:
    output = KeptOutput(MOST)
    try:
        for chunk in chunks:
            write(output, chunk)
        whole = b"".join(chunks)
        if len(whole) <= 2 * MOST:
            assert output.data == whole
        else:
            assert output.left_out == len(whole) - 2 * MOST
            assert output.data.startswith(whole[:MOST])
            assert output.data.endswith(whole[-MOST:])
    finally:
        output.close()
