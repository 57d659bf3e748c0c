"""Starts the sessions of acceptance tests, and reads what they say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TIME_LIMIT = 240
"""Seconds for one session; the slowest takes some ten, on a machine with ten times too much to do
two minutes. A deadlock takes them all."""

TORCH = importlib.util.find_spec("torch") is not None
"""Whether it is installed."""
# Not importorskip: the fixture pytester forgets what its test imported, and torch cannot be
# imported a second time.
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is not installed")

_TOUCH = 'ctypes.CDLL("libcuda.so.1").cuInit(0)'
_MODULE = """
import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest


def touch ():
    touch()


def child(work=lambda: None):
    # Forks, does the work in the child, and waits for it.
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


"""

_TEST_LINE = re.compile(r"^(\S+?::\S+) (PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR)", re.MULTILINE)


def module(body: str) -> str:
    """Return the text of a module that a session runs.

    In the body ``touch()`` stands for the cheapest touch, made on that very line; ``touch`` is the
    same as a function; ``child(work)`` forks, does the work in the child, and waits for it.
    """
    return re.sub(r"\btouch\(\)", _TOUCH, _MODULE + body)


def run_session(
    pytester: pytest.Pytester,
    *args: str | Path,
    env: Mapping[str, str] | None = None,
    plugin: tuple[str, ...] = ("-p", "pytest_cudafork.plugin"),
    time_limit: float = TIME_LIMIT,
) -> pytest.RunResult:
    """Run a pytest session of its own, with no plugin but ours: others cost half of the time.

    ``time_limit`` is in seconds; beyond it the test fails.
    """
    variables = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "200",
        **(env or {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return pytester.runpytest_subprocess(*plugin, *args, timeout=time_limit)


def run_python(code: str, cwd: Path) -> str:
    """Run a script in an interpreter of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=TIME_LIMIT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(
    pytester: pytest.Pytester, level: str, *args: str | Path, env: Mapping[str, str] | None = None
) -> pytest.RunResult:
    """Run a session with the check at this level, under the phantom on every machine."""
    env = {"PYTEST_CUDA_FORK_DEVICE": "phantom", **(env or {})}
    return run_session(pytester, f"--cuda-fork-check={level}", "-v", *args, env=env)


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """Test name to outcome, from ``-v``; a test that has several has them joined by a space."""
    found: dict[str, str] = {}
    for nodeid, outcome in _TEST_LINE.findall(result.stdout.str()):
        name = nodeid.partition("::")[2]
        found[name] = f"{found[name]} {outcome}" if name in found else outcome
    return found


def failure(result: pytest.RunResult, test: str) -> str:
    """Return what the session tells about one test that failed, or went wrong beside its body."""
    text = result.stdout.str()
    pattern = rf"^_+ (?:ERROR at (?:setup|teardown) of )?{re.escape(test)} _+$"
    headings = list(re.finditer(pattern, text, re.MULTILINE))
    assert headings, f"no failure of {test} in:\n{text}"
    parts = []
    for heading in headings:
        rest = text[heading.end() :]
        end = re.search(r"^(?:_{3,} .* _{3,}|={3,} .* ={3,})$", rest, re.MULTILINE)
        parts.append(rest[: end.start()] if end else rest)
    return "\n".join(parts)


def counts(result: pytest.RunResult) -> dict[str, int]:
    """Return the numbers of the last section, by their names."""
    text = result.stdout.str()
    lines = [line for line in text.splitlines() if line.startswith("touches: ")]
    assert len(lines) == 1, f"not one line of counts in:\n{text}"
    found = re.findall(r"([a-z][a-z ]+): (\d+)", lines[0])
    found += [(name, n) for n, name in re.findall(r"(\d+) ((?:at|in) [^,)]+)", lines[0])]
    return {name: int(n) for name, n in found}


def line_of(path: Path, text: str) -> int:
    """Return the number of the one line of a file that holds the text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(found) == 1, (text, found)
    return found[0]


def records(path: Path, kind: str = "") -> list[dict[str, Any]]:
    """Return the records of a kept ledger, or those of one kind."""
    lines = path.read_text(encoding="ascii").splitlines()
    # The first byte of the file is a mark, in a line of its own.
    every = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in every if not kind or record["k"] == kind]


def assert_no_crash(result: pytest.RunResult) -> None:
    """Check that pytest itself did not fall over, and that no traceback escaped."""
    text = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in text, text
    assert "Traceback (most recent call last)" not in result.stderr.str(), result.stderr.str()
