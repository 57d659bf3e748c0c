"""Time limits of isolated tests that are over as soon as a test hangs, and not a moment before.

A limit that one can wait for is too short where much else runs: it is over before the test has
begun to hang, or ends one that is healthy. So a session whose tests hang has a limit that none of
them comes near, ``LIMIT``. A test that has begun to hang says so, and then the clock by which the
session watches its processes leaps over that limit.
"""

from __future__ import annotations

from pathlib import Path

LIMIT = 600
"""Seconds; the limit of tests that hang."""
LONGER = 100 * LIMIT
"""Seconds; a limit that no leap comes near."""
_OVER = LIMIT + 10

_CONFTEST = """
import os as _os
from pytest_cudafork.process import supervision as _supervision

_LEAPS = _os.path.join(FOLDER, _os.environ.get("PYTEST_XDIST_WORKER", "main"))
_os.makedirs(_LEAPS, exist_ok=True)

class _LeapingTime:
    def __init__(self, real):
        self._real = real
        self.leaps = 0
    def __getattr__(self, name):
        return getattr(self._real, name)
    def monotonic(self):
        return self._real.monotonic() + self.leaps

_supervision.time = _LeapingTime(_supervision.time)

def _wait(self, seconds, wait=_supervision.Supervisor._wait):
    # Here alone: a test may begin before its time does.
    dead = wait(self, 0.05 if seconds is None else min(seconds, 0.05))
    _supervision.time.leaps = sum(int(one.split("-")[1]) for one in _os.listdir(_LEAPS))
    return dead

_supervision.Supervisor._wait = _wait
_supervision.EXIT_SECONDS = LONGER  # of the test before, whose process may still be ending

def pytest_runtest_logfinish():
    pass  # with a hook here no process works ahead: a test leaps while it is watched, not before
"""

_MODULE = """
import os as _os, shlex as _shlex, subprocess as _subprocess, uuid as _uuid

def _leap(seconds):
    worker = _os.environ.get("PYTEST_XDIST_WORKER", "main")
    return _os.path.join(FOLDER, worker, f"{_uuid.uuid4().hex}-{seconds}")

def time_leaps(seconds):
    # By a whole number of seconds.
    open(_leap(seconds), "w").close()

def time_is_up():
    # Said by a test that hangs from here on.
    time_leaps(OVER_LIMIT)

def time_is_up_once(condition):
    # Another process says so, once this is true for a shell.
    script = f"until {condition}; do sleep 0.05; done; : > {_shlex.quote(_leap(OVER_LIMIT))}"
    _subprocess.Popen(["sh", "-c", script])
"""


def conftest(folder: Path) -> str:
    """Return what a conftest needs for leaps; the folder is for these sessions alone."""
    return _CONFTEST.replace("FOLDER", repr(str(folder))).replace("LONGER", str(LONGER))


def module(folder: Path) -> str:
    """Return what a test module needs to call ``time_is_up`` and its likes."""
    return _MODULE.replace("FOLDER", repr(str(folder))).replace("OVER_LIMIT", str(_OVER))
