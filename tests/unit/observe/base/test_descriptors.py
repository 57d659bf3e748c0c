"""Descriptors that a watched program must not take for its own."""

from __future__ import annotations

import os

import pytest

from pytest_cudafork.observe.base import descriptors
from pytest_cudafork.observe.base.descriptors import above_the_streams


def test_a_descriptor_above_the_streams_stays_what_it_is() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    assert above_the_streams(fd) == fd
    os.close(fd)


def test_one_that_would_be_a_stream_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    first = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(descriptors, "LAST_STREAM", first)
    fd = above_the_streams(first)
    assert fd > first
    assert not os.get_inheritable(fd)
    assert os.dup(fd) == first  # it was closed
    os.close(first)
    os.close(fd)


def test_one_that_cannot_be_moved_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(descriptors, "LAST_STREAM", 1 << 30)  # no descriptor has such a number
    with pytest.raises(OSError, match="Invalid argument"):
        above_the_streams(first)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)
