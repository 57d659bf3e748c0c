"""Paths are shortened as far as they stay clear."""

from __future__ import annotations

import os

import pytest

from pytest_cudafork.observe.story.paths import location, short_path
from pytest_cudafork.observe.story.touch import Frame
from tests.unit.observe.story.test_words import FUNCTION, SITE


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("<string>", "<string>"),
        (f"{SITE}/torch/cuda/__init__.py", "torch/cuda/__init__.py"),
        ("/usr/lib/python3/dist-packages/yaml/x.py", "yaml/x.py"),
        ("/base/tests/test_it.py", "tests/test_it.py"),
        ("/basement/test_it.py", "/basement/test_it.py"),
        ("/usr/lib/python3.11/json/decoder.py", "python3.11/json/decoder.py"),
    ],
)
def test_a_path_is_shortened_as_far_as_it_stays_clear(filename: str, expected: str) -> None:
    assert short_path(filename, "/base") == expected


def test_a_working_directory_that_was_removed_shortens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert location(Frame("/a/b.py", 3, "f", FUNCTION)) == "/a/b.py:3"
