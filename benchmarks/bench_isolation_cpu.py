"""CPU time and wall time of whole sessions: our methods against pytest-forked and no isolation.

    make .venv-bench/installed   makes the environment, with a pytest that pytest-forked works with
    .venv-bench/bin/python benchmarks/bench_isolation_cpu.py --tests 1000
    .venv-bench/bin/python benchmarks/bench_isolation_cpu.py --before FOLDER

The sessions take turns. CPU time is that of the session and of all that it has started, also of
what is nobody's child any more when it ends. With ``--before`` our methods also run with the
package that lies in another folder (a checkout of a revision), with ``--scope module`` once more
with a process for each file. pytest-isolate takes part where it is installed, with dill and tblib.
``--tenths`` compares the CPU time of the last tenth of the tests with that of the second. With
``--floor`` the least that any process for each test takes is measured as well (``bare_fork``).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
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
from arguments import at_least, some
from isolation_sessions import FORKED, ISOLATE, PLAIN, ours, project_folder
from results_file import parser, publish, table

_PR_SET_CHILD_SUBREAPER = 36
_METHODS = ("fork", "forkserver")
_LEAST_SECONDS = 0.5
"""Less CPU time than that is not compared: the kernel counts hundredths."""
_RATIOS = (("cpu", "pytest-forked"), ("wall", "pytest-forked"), ("cpu", "no isolation"))
HEADER = [
    *("session", "CPU s", "user s", "system s", "wall s", "page faults a test", "last tenth"),
    *("CPU", "wall", "CPU to none"),
]


class Cost(NamedTuple):
    """What one session took, its descendants included."""

    cpu: float
    user: float
    system: float
    wall: float
    faults: float
    last_tenth: float
    """Its CPU time to that of the second: the first has what is done once. 0: not known."""


def arguments() -> argparse.Namespace:
    """Return the command line."""
    made = parser("CPU time of isolated sessions.", rounds=3)
    made.add_argument(
        "--tests", type=at_least(1), default=1000, help="tests in a session (default 1000)"
    )
    made.add_argument("--torch", action="store_true", help="test files import torch")
    made.add_argument("--before", default="", help="a folder with another pytest_cudafork")
    made.add_argument(
        "--files", type=at_least(0), default=0, help="test files (default 10, with torch 4)"
    )
    made.add_argument("--scope", default="", help="also one process for each of these: module")
    made.add_argument("--floor", action="store_true", help="also the least that is possible")
    made.add_argument("--tenths", action="store_true", help="compare the last tenth to the second")
    made.add_argument("--only", default="", help="sessions to run, with commas; all by default")
    options = made.parse_args()
    known = _sessions(options.before, options.scope, floor=options.floor)
    for name in options.only.split(",") if options.only else ():
        some(made, "--only", name, {name} & set(known), known)
    return options


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
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    env[project.NOTES_ENV] = str(notes)
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
    return Cost(user + system, user, system, wall, faults, _last_tenth(notes))


def _last_tenth(notes: Path) -> float:
    if not notes.exists():
        return 0.0
    spent = [float(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    second, last = spent[1] - spent[0], spent[-1] - spent[-2]
    return last / second if second >= _LEAST_SECONDS else 0.0


def _sessions(before: str, scope: str, *, floor: bool) -> dict[str, tuple[Sequence[str], str]]:
    """Return the arguments of each kind of session, and a folder where it finds modules."""
    found: dict[str, tuple[Sequence[str], str]] = {
        "no isolation": (PLAIN, ""),
        "pytest-forked": (FORKED, ""),
    }
    if all(map(importlib.util.find_spec, ("pytest_isolate", "dill", "tblib"))):
        found["pytest-isolate"] = (ISOLATE, "")
    if floor:
        here = str(Path(__file__).resolve().parent)
        for how in ("fork", "server"):
            found[f"bare {how}"] = ((*PLAIN, "-p", "bare_fork", f"--bare-fork={how}"), here)
    for method in _METHODS:
        if before:
            found[f"{method}, before"] = (ours(method), before)
        found[method] = (ours(method), "")
        if scope:
            shared = (*ours(method), f"--cuda-fork-isolate-scope={scope}")
            found[f"{method}, one for each {scope}"] = (shared, "")
    return found


def main() -> int:
    """Measure and print; the last line is JSON."""
    options = arguments()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sessions = _sessions(options.before, options.scope, floor=options.floor)
    if options.only:
        sessions = {name: sessions[name] for name in options.only.split(",")}
    costs: dict[str, list[Cost]] = {name: [] for name in sessions}
    with project_folder() as folder:
        write = project.write_trivial if options.torch else project.write_bare
        write(folder, options.tests, options.files or (4 if options.torch else 10))
        # its notes are of other benchmarks
        notes = project.TENTHS_CONFTEST if options.tenths else ""
        (folder / "conftest.py").write_text(notes, encoding="utf-8")
        names = list(sessions)
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                args, package = sessions[name]
                costs[name].append(run(folder, args, options.tests, package))
    rows, figures = _figures(costs)
    data = {"tests": options.tests, "torch": options.torch, "columns": HEADER[1:]}
    data |= {"figures": figures}
    topic = "isolation_sessions_torch" if options.torch else "isolation_sessions"
    told = '"CPU" and "wall" are to pytest-forked, "CPU to none" to no isolation; 0: not known.'
    text = f"{told}\n\n{table(HEADER, rows)}"
    publish(topic, "CPU time of isolated sessions", text, data, save=options.save)
    return 0


def _figures(costs: dict[str, list[Cost]]) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Return the rows of the table, and the same as numbers."""
    rows, figures = [], {}
    for name, of_kind in costs.items():
        medians = [statistics.median(values) for values in zip(*of_kind, strict=True)]
        ratios = [
            statistics.median(
                getattr(a, key) / getattr(b, key)
                for a, b in zip(of_kind, costs[other], strict=True)
            )
            if other in costs
            else 0.0
            for key, other in _RATIOS
        ]
        rows.append([name, *(f"{value:.2f}" for value in (*medians, *ratios))])
        figures[name] = [round(value, 3) for value in (*medians, *ratios)]
    return rows, figures


if __name__ == "__main__":
    sys.exit(main())
