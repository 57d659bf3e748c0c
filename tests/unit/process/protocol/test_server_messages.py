"""Tests of the values that pass between a fork server and its parent."""

from __future__ import annotations

import pytest

from pytest_cudafork.process.protocol import frames
from pytest_cudafork.process.protocol.server_messages import (
    NAMES_AT_ONCE,
    CannotFork,
    Limits,
    ServerSettings,
    in_packets,
)


def test_settings_come_back_as_they_were() -> None:
    settings = ServerSettings("a:b", {"x": 1}, 2, True, True, Limits(3, 4.5, 6), ("p",), ("a",))
    plain = frames.loads(frames.dumps(settings.to_plain()))
    assert ServerSettings.from_plain(plain) == settings


@pytest.mark.parametrize(
    ("why_not", "reason"),
    [
        (
            CannotFork("/a/test_x.py", "cuda", "CUDA runs"),
            "after the import of test_x.py, CUDA runs",
        ),
        (CannotFork("", "threads", "threads run (a)"), "threads run (a)"),
        (CannotFork("", "start", "it died", output="first\nlast "), "it died (last)"),
    ],
)
def test_the_reason_names_the_file_or_the_last_line(why_not: CannotFork, reason: str) -> None:
    assert why_not.reason == reason


def test_long_lists_of_names_are_cut_into_packets() -> None:
    names = [f"n{number}" for number in range(2 * NAMES_AT_ONCE + 1)]
    parts = list(in_packets(names))
    assert [len(part) for part in parts] == [NAMES_AT_ONCE, NAMES_AT_ONCE, 1]
    assert [name for part in parts for name in part] == names
    assert list(in_packets([])) == []
