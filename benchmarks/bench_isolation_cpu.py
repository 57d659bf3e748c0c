"""CPU time and wall time of whole sessions: our methods against pytest-forked and no isolation.

    make bench-isolation   makes the environment, with a pytest that pytest-forked works with
    .venv-bench/bin/python benchmarks/bench_isolation_cpu.py --tests 1000
    .venv-bench/bin/python benchmarks/bench_isolation_cpu.py --before FOLDER

The sessions take turns. CPU time is that of the session and of all that it has started, also of
what is nobody's child any more when it ends. With ``--before`` our methods also run with the
package that lies in another folder (a checkout of a revision).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import isolation_project as project
from isolation_sessions import FORKED, PLAIN, ours, project_folder
from results_file import parser, publish, table

_PR_SET_CHILD_SUBREAPER = 36
_METHODS = ("fork", "forkserver")
HEADER = ["session", "CPU s", "user s", "system s", "wall s", "page faults a test", "CPU", "wall"]


class Cost(NamedTuple):
    """What one session took, its descendants included."""

    cpu: float
    user: float
    system: float
    wall: float
    faults: float


def arguments() -> argparse.Namespace:
    """Return the command line."""
    made = parser("CPU time of isolated sessions.", rounds=3)
    made.add_argument("--tests", type=int, default=1000, help="tests in a session (default 1000)")
    made.add_argument("--torch", action="store_true", help="test files import torch")
    made.add_argument("--before", default="", help="a folder with another pytest_cudafork")
    return made.parse_args()


def run(folder: Path, args: Sequence[str], tests: int, package: str = "") -> Cost:
    """Run one session and wait for all that it has started.

    Raises:
        RuntimeError: Not all of its tests passed.

    """
    foreign = ("PYTEST_", "_CUDAFORK_", "PYTHONDONTWRITEBYTECODE", "BENCH_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if package:
        env["PYTHONPATH"] = package
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *args],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.perf_counter() - start
    if done.returncode != 0 or f"{tests} passed" not in done.stdout:
        raise RuntimeError(f"pytest {args} ended with status {done.returncode}:\n{done.stdout}")
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    faults = (after.ru_minflt - before.ru_minflt) / tests
    return Cost(user + system, user, system, wall, faults)


def _sessions(before: str) -> dict[str, tuple[Sequence[str], str]]:
    """Return the arguments and the folder of the package of each kind of session."""
    found: dict[str, tuple[Sequence[str], str]] = {
        "no isolation": (PLAIN, ""),
        "pytest-forked": (FORKED, ""),
    }
    for method in _METHODS:
        if before:
            found[f"{method}, before"] = (ours(method), before)
        found[method] = (ours(method), "")
    return found


def main() -> int:
    """Measure and print; the last line is JSON."""
    options = arguments()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sessions = _sessions(options.before)
    costs: dict[str, list[Cost]] = {name: [] for name in sessions}
    with project_folder() as folder:
        write = project.write_trivial if options.torch else project.write_bare
        write(folder, options.tests)
        (folder / "conftest.py").unlink()  # its notes are of other benchmarks
        names = list(sessions)
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                args, package = sessions[name]
                costs[name].append(run(folder, args, options.tests, package))
    forked = costs["pytest-forked"]
    rows, figures = [], {}
    for name, of_kind in costs.items():
        medians = [statistics.median(values) for values in zip(*of_kind, strict=True)]
        ratios = [
            statistics.median(
                getattr(a, key) / getattr(b, key) for a, b in zip(of_kind, forked, strict=True)
            )
            for key in ("cpu", "wall")
        ]
        rows.append([name, *(f"{value:.2f}" for value in (*medians, *ratios))])
        figures[name] = [round(value, 3) for value in (*medians, *ratios)]
    data = {"tests": options.tests, "torch": options.torch, "columns": HEADER[1:]}
    data |= {"load": os.getloadavg(), "figures": figures}
    topic = "isolation_sessions_torch" if options.torch else "isolation_sessions"
    text = f"The last two columns are to pytest-forked.\n\n{table(HEADER, rows)}"
    publish(topic, "CPU time of isolated sessions", text, data, save=options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
