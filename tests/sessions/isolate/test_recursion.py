"""How deeply a test may recurse in a process of its own: about as deeply as without isolation.

A test may need nearly all frames that Python allows: structlog has one that needs about 950 of
1,000.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sessions import run_session

SOURCE = """
import os, sys

LIMIT = 1000

def frames():
    frame, count = sys._getframe(1), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count

def recurse(times):
    return times and recurse(times - 1)

def look(name):
    assert sys.getrecursionlimit() == LIMIT
    with open("found", "a") as file:
        file.write(f"{name} {frames()}\\n")

def test_first():
    look("first")
    recurse(LIMIT - 60)

def test_second():  # its process may have been made ahead
    look("second")
    recurse(LIMIT - 60)

def test_of_the_limit():
    try:
        recurse(LIMIT)
    except RecursionError:
        return
    raise AssertionError
"""
MOST_MORE = {"fork": 2, "forkserver": 4, "spawn": 0}
"""How many frames a test may have below it beyond those that it has without isolation."""


def _frames(pytester: pytest.Pytester, *args: str) -> dict[str, int]:
    """Return how many frames the tests of a session have found below them."""
    found = Path(pytester.path, "found")
    found.unlink(missing_ok=True)
    run_session(pytester, *args).assert_outcomes(passed=3)
    lines = found.read_text(encoding="utf-8").splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def test_a_test_has_nearly_as_many_frames_left_as_without_isolation(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(SOURCE)
    plain = _frames(pytester)
    for method, more in MOST_MORE.items():
        for name, count in _frames(pytester, f"--cuda-fork-isolate={method}").items():
            assert count <= plain[name] + more, f"{name} by {method}"


def test_the_body_alone_has_them_too(pytester: pytest.Pytester) -> None:
    marker = 'pytest.mark.cuda_isolated(method="fork", fixtures="inherit")'
    pytester.makepyfile(SOURCE)
    plain = _frames(pytester)
    pytester.makepyfile(f"import pytest\npytestmark = {marker}\n{SOURCE}")
    for name, count in _frames(pytester).items():
        assert count <= plain[name] + 6, name
