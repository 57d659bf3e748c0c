"""Runs one pytest session of the isolation benchmark, and measures what it took.

The cost of a test is the time between the ends of two tests that follow each other in one session,
so the start of the session and of its servers is in the wall time alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isolation_project import HEAP_ENV, NOTES_ENV, PID_ENV

PLAIN = ("-p", "no:cacheprovider")
FORKED = (*PLAIN, "-p", "pytest_forked", "--forked")
ISOLATE = (*PLAIN, "-p", "pytest_isolate.plugin", "--isolate")
# Other plugins of the machine would add their own time to all sessions and hide what is compared.
_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
_MINE = ("PYTEST_", "_CUDAFORK_", "PYTHONDONTWRITEBYTECODE", "BENCH_")
_SESSION_SECONDS = 3600.0


def ours(method: str) -> tuple[str, ...]:
    """Return the arguments that isolate every test by one of our methods."""
    return (*PLAIN, "-p", "pytest_cudafork.plugin", f"--cuda-fork-isolate={method}")


@dataclass
class Timing:
    """What one session took: its wall time (s) and the cost of each test but the first (ms)."""

    wall: float
    gaps: list[float]
    held: list[dict[str, int]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median cost of a test in ms."""
        return statistics.median(self.gaps)

    @property
    def mean(self) -> float:
        """The mean cost of a test in ms."""
        return statistics.fmean(self.gaps)

    @property
    def p10(self) -> float:
        """The cost of a test in ms that a tenth stays below."""
        return sorted(self.gaps)[len(self.gaps) // 10]


def run(folder: Path, args: Sequence[str], tests: int, heap_mib: int = 0) -> Timing:
    """Run one session and look for what it left behind.

    Raises:
        RuntimeError: not all of its tests passed.

    """
    with tempfile.TemporaryDirectory(prefix="bench-isolation-") as scratch:
        temp = Path(scratch, "tmp")
        temp.mkdir()
        notes = Path(scratch, "notes.json")
        env = _environment(temp, notes)
        if heap_mib:
            env[HEAP_ENV] = str(heap_mib)
        # the shell's number becomes the session's
        command = ["sh", "-c", f'{PID_ENV}=$$ exec "$@"', "sh", sys.executable, "-m", "pytest"]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "-q", *args],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SESSION_SECONDS,
        )
        wall = time.perf_counter() - start
        if done.returncode != 0 or f"{tests} passed" not in done.stdout:
            tail = done.stdout[-4000:]
            raise RuntimeError(f"pytest {args} ended with status {done.returncode}:\n{tail}")
        noted: dict[str, Any] = json.loads(notes.read_text(encoding="utf-8"))
        ends = noted["ends"]
        gaps = [(b - a) * 1000 for a, b in itertools.pairwise(ends)]
        left = [f"file {path.relative_to(temp)}" for path in temp.rglob("*") if path.is_file()]
        left += _processes_with(f"{NOTES_ENV}={notes}")
    return Timing(wall, gaps, noted["held"], left)


def run_nodeids(folder: Path, nodeids: Sequence[str]) -> Timing:
    """Run ``pytest NODEID`` for each test; the cost of a test is that of its whole session."""
    gaps = [run(folder, [*PLAIN, nodeid], 1).wall * 1000 for nodeid in nodeids]
    return Timing(sum(gaps) / 1000, gaps)


def _environment(temp: Path, notes: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(_MINE)}
    return {**env, **_ENVIRONMENT, "TMPDIR": str(temp), NOTES_ENV: str(notes)}


def _processes_with(variable: str) -> list[str]:
    """Return the processes that have a variable in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(f"process {(entry / 'cmdline').read_bytes().decode()!r}")
    return found


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with a loop in a process of its own."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(100000))"
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", loop])
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def project_folder() -> Iterator[Path]:
    """Make an empty folder for test files and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-isolation-project-"))
    try:
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
