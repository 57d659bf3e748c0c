"""Runs whole sessions whose tests are isolated by each method, for the tests of isolation."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

METHODS = ("fork", "forkserver", "spawn")
_ENDING_SECONDS = 120.0
"""How long a process may take to end that is about to."""

CONFTEST = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if "inproc" not in item.name and not any(item.iter_markers("cuda_isolated")):
            item.add_marker(pytest.mark.cuda_isolated(method={method!r}, timeout={timeout!r}))
"""


def isolate_all(
    pytester: pytest.Pytester, method: str, extra: str = "", timeout: int = 300
) -> None:
    """Write a conftest that isolates every test whose name does not say ``inproc``."""
    if method:
        pytester.makeconftest(CONFTEST.format(method=method, timeout=timeout) + extra)
    else:
        pytester.makeconftest(extra)


def with_cores(number: int) -> str:
    """Return lines for a conftest: the session finds so many cores that it may use.

    Each beyond the first is one more interpreter that is started ahead of its test.
    """
    return f"""
from pytest_cudafork.process import launch
launch.usable_cores = lambda: {number}
"""


def is_gone(pid: int) -> bool:
    """Whether a process is dead, or becomes so (who ends or reaps it may be slow).

    Of one that lives on it takes ``_ENDING_SECONDS`` to say so: see ``lives`` for those.
    """
    until = time.monotonic() + _ENDING_SECONDS
    while lives(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended; one that nobody has reaped yet has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
