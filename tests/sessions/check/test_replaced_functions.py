"""Touches and forks of tests that have replaced functions of the standard library.

What sees them, records them and tells of them runs inside the test's own call.
"""

from __future__ import annotations

import re

import pytest

from tests.support import patched_functions
from tests.support.sessions import check, counts, failure, outcomes

NEEDED_BY_PYTEST = (
    *("ast.", "contextlib.", "inspect.", "linecache.", "re.", "shutil.", "traceback.", "weakref."),
    *("os.close", "os.dup2", "os.fspath", "os.fstat", "os.getcwd", "os.path.", "os.stat"),
    "warnings.catch_warnings",
)
"""It uses them between the phases and to show a failure, so that there they stay what they are."""

TESTS = """
import contextlib
import ctypes
import os
import sys

import pytest
import pytest_cudafork
import replacing
from keeping import Kept

ALL = replacing.prepare({names!r})
LASTING = {{name: ALL[name] for name in ALL if not name.startswith({needed!r})}}
DRIVER = ctypes.CDLL("libcuda.so.1")
FORK = os.fork


@contextlib.contextmanager
def replaced(some=ALL):
    with pytest.MonkeyPatch.context() as patch:
        replacing.patch(some, patch.setattr)
        yield


OTHERS = {{name: LASTING[name] for name in LASTING if name not in {others!r}}}


@pytest.fixture
def to_the_end():
    with replaced(LASTING):
        yield


def test_touches():
    with replaced():
        DRIVER.cuInit(0)  # the first touch


def test_touches_at_the_end(to_the_end):
    DRIVER.cuInit(0)


def test_expects_a_refusal():
    with replaced():
        DRIVER.cuInit(0)
        try:
            FORK()
        except pytest_cudafork.CudaForkError as error:
            told = str(error)
    assert "test_it.py:" in told


def test_is_refused():
    with replaced():
        DRIVER.cuInit(0)
        FORK()  # refused in full


def test_swallows():
    with replaced():
        DRIVER.cuInit(0)
        try:
            FORK()
        except Exception:  # swallowed here
            pass


def test_swallows_at_the_end(to_the_end):
    DRIVER.cuInit(0)
    try:
        FORK()
    except Exception:  # swallowed there
        pass


def test_forks_past_the_guard():
    with replaced(OTHERS):
        DRIVER.cuInit(0)
        pid = Kept.fork()  # past the guard
        if pid == 0:
            DRIVER.cuInit(0)  # in the child
            Kept.leave(0)
    Kept.wait(pid, 0)


def test_the_next_is_as_ever():
    assert "x" == os.path.basename("a/x")


def test_nothing_was_imported_meanwhile():
    before = set(sys.modules)
    with replaced():
        try:
            DRIVER.cuInit(0)
            FORK()
        except pytest_cudafork.CudaForkError:
            pass
    assert set(sys.modules) == before
"""
KEEPING = """
import os


class Kept:
    fork, leave, wait = os.fork, os._exit, os.waitpid
"""
NEEDED_BY_OTHERS = ("os.getpid", "warnings.warn")
"""The package filelock uses them around a fork."""
_VARIES = re.compile(r"process \d+|0x[0-9a-f]+|in [\d.]+ ?m?s|:\d+")


@pytest.mark.parametrize("method", ["", "fork", "forkserver", "spawn"])
def test_what_they_do_is_seen_and_told_as_ever(pytester: pytest.Pytester, method: str) -> None:
    pytester.makepyfile(replacing=patched_functions.HELPER, keeping=KEEPING)
    used = patched_functions.used_functions(patched_functions.WATCHING)
    # a parser that knows its own classes no more is of no use to anybody
    names = [name for name in used if not re.match("ast.[A-Z]", name)]
    assert {"os.getpid", "ast.parse", "linecache.getlines", "time.monotonic_ns"} < {*names}
    options = ["-p", "keeping", *([f"--cuda-fork-isolate={method}"] if method else [])]
    results = []
    for each in ([], names):
        source = TESTS.format(names=each, needed=NEEDED_BY_PYTEST, others=NEEDED_BY_OTHERS)
        (pytester.path / "test_it.py").write_text(source)
        results.append(check(pytester, "fork", *options))
    plain, result = results
    expected = outcomes(plain)
    assert set(expected.values()) == {"PASSED", "FAILED"}
    assert outcomes(result) == expected, result.stdout.str()
    assert counts(result) == counts(plain)
    for test in (name for name, outcome in expected.items() if outcome == "FAILED"):
        found, shown = (_VARIES.sub("", failure(one, test)) for one in (result, plain))
        assert found == shown
