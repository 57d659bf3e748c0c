"""Programs that touch CUDA and fork, and the command line that watches them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIMIT = 120
"""Seconds for a program; only one that hangs takes them."""

TOUCHES = """\
import ctypes
import os
import sys


def touch():
    try:
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        pass


touch()
"""
"""The beginning of a program: line 8 touches."""
TOUCHES_AND_FORKS = f"""\
{TOUCHES}\
sys.stdout.write("out\\n")
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    touch()
    os._exit(0)
os.waitpid(pid, 0)
sys.stderr.write("err\\n")
sys.exit(3)
"""
"""Line 8 touches, 16 forks; the child touches in 8, called from 18."""
FINDING = (
    "a forked child touched CUDA at prog.py:8: CUDA was initialized at prog.py:8 (in touch), "
    "before the fork"
)


def environment(**more: str) -> dict[str, str]:
    """Return an environment without what would change a watch."""
    foreign = ("PYTEST_", "_CUDAFORK_", "CUDA_", "COV_CORE_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    return {**kept, **more}


def watched(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pytest_cudafork run`` with these words."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        env=environment() if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        **options,
    )


def command(*words: str | Path) -> list[str]:
    """Return the command line that watches a program."""
    return [sys.executable, "-m", "pytest_cudafork", "run", *map(str, words)]


def plainly(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python without any watch."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment() if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that comes by itself; the limit is for what never does."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)
