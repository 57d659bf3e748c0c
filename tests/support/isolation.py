"""Runs whole sessions whose tests are isolated by each method, for the tests of isolation."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

METHODS = ("fork", "forkserver", "spawn")

CONFTEST = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if "inproc" not in item.name and not any(item.iter_markers("cuda_isolated")):
            item.add_marker(pytest.mark.cuda_isolated(method={method!r}, timeout={timeout!r}))
"""


def isolate_all(pytester: pytest.Pytester, method: str, extra: str = "", timeout: int = 30) -> None:
    """Write a conftest that isolates every test whose name does not say ``inproc``."""
    if method:
        pytester.makeconftest(CONFTEST.format(method=method, timeout=timeout) + extra)
    else:
        pytester.makeconftest(extra)


def is_gone(pid: int) -> bool:
    """Whether a process is dead, or becomes so within a minute (its reaper may be slow)."""
    for _ in range(1200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
