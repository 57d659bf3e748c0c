"""What tests of dying and hanging children share: notes of processes, a watch for leaks."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support import leaps
from tests.support.isolation import CONFTEST, is_gone
from tests.support.sessions import failure, run_session

METHODS = ("fork", "forkserver", "spawn")

_PREAMBLE = """
import contextlib, ctypes, faulthandler, os, pytest, resource, signal, socket, subprocess, sys
import threading, time

def note(pid):
    # Tells the outer test of a process that must be gone in the end.
    with open("NOTES", "a") as file:
        file.write(f"{pid}\\n")

def kill_self(signum=signal.SIGKILL):
    note(os.getpid())
    os.kill(os.getpid(), signum)
    time.sleep(60)

"""

HANGS_IN_C = """
def test_c():
    note(os.getpid())
    pause = ctypes.CDLL(None).pause
    time_is_up_once(f"grep -q '^State:.S' /proc/{os.getpid()}/status")
    pause()
"""
"""A test that waits in a function written in C until its time is up."""

_LEAK_WATCH = """
import atexit, json, os

def _open_descriptors():
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return [link for link in links if not link.endswith("/fd")]

_at_start = _open_descriptors()
_parent = os.getpid()

def _write():
    if os.getpid() == _parent:
        children = []
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/children") as file:
                    children += file.read().split()
            except OSError:  # a thread that has ended meanwhile
                pass
        new = [link for link in _open_descriptors() if link not in _at_start]
        with open("LEAKS", "w") as file:
            json.dump({"descriptors": new, "children": children}, file)

if "_CUDAFORK_ISOLATED" not in os.environ:
    atexit.register(_write)
"""


def module_of(pytester: pytest.Pytester, body: str) -> str:
    """Return the text of a test module: helpers, then the body."""
    text = leaps.module(pytester.path / "leaps") + _PREAMBLE + body
    return text.replace("NOTES", str(pytester.path / "notes"))


def run_deaths(
    pytester: pytest.Pytester,
    method: str,
    body: str,
    *args: str,
    timeout: float = leaps.LIMIT,
    conftest: str = "",
) -> pytest.RunResult:
    """Run a module whose tests are all isolated, and check that nothing of it is left.

    A test that hangs says ``time_is_up()``. ``TMPDIR`` is an empty directory, so that what is left
    there can be seen.
    """
    temporary = Path(tempfile.mkdtemp(prefix="cf-"))  # short: a socket may have to fit in
    text = CONFTEST.format(method=method, timeout=timeout)
    text += leaps.conftest(pytester.path / "leaps") + conftest
    watch = _LEAK_WATCH.replace("LEAKS", str(pytester.path / "leaks"))
    pytester.makeconftest(text + watch)
    pytester.makepyfile(test_d=module_of(pytester, body))
    shm = set(os.listdir("/dev/shm"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(temporary))
            result = run_session(pytester, "-p", "no:cacheprovider", "-rA", *args)
        left = [path for path in temporary.iterdir() if not path.match("pytest-of-*")]
        assert left == []
    finally:
        shutil.rmtree(temporary)
    assert "INTERNALERROR>" not in result.stdout.str() + result.stderr.str()
    assert_nothing_left(pytester, shm)
    return result


def assert_nothing_left(pytester: pytest.Pytester, shm: set[str]) -> None:
    """Check processes, descriptors and shared memory after a session."""
    for pid in noted(pytester):
        assert is_gone(pid), (pid, Path(f"/proc/{pid}/cmdline").read_text())
    leaks = json.loads((pytester.path / "leaks").read_text())
    assert leaks == {"descriptors": [], "children": []}
    # other sessions on this machine may have some of their own for a moment
    new = [name for name in set(os.listdir("/dev/shm")) - shm if _is_ours(pytester, name)]
    assert new == []


def _is_ours(pytester: pytest.Pytester, name: str) -> bool:
    """Whether a name in /dev/shm was noted, or carries the number of a noted process."""
    names = pytester.path / "shm"
    known = names.read_text().split() if names.exists() else []
    numbers = {str(pid) for pid in noted(pytester)}
    return name in known or bool(numbers & set(re.findall(r"\d+", name)))


def noted(pytester: pytest.Pytester) -> list[int]:
    """Return the processes that the tests have noted."""
    notes = pytester.path / "notes"
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def headline(result: pytest.RunResult, test: str) -> str:
    """Return the line of the short summary about a test that failed."""
    pattern = rf"^(?:FAILED|ERROR) test_d\.py::{re.escape(test)} - (.*)$"
    lines = re.findall(pattern, result.stdout.str(), re.MULTILINE)
    assert len(lines) == 1, (test, lines, result.stdout.str())
    return str(lines[0])


def told(result: pytest.RunResult, test: str) -> str:
    """Return everything that the session tells about a test that failed."""
    return failure(result, test)
