"""Measures the check: a session of trivial tests with it, without it, without the plugin.

Whole sessions are measured, start and end included, in CPU seconds (user and system): on a shared
machine the wall clock mostly measures the neighbors. The kinds take turns. The ratio compares the
smallest values: the work is the same in every round, and what a neighbor adds is never negative.
The medians stand beside them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from arguments import at_least
from results_file import parser, publish, table

BASE = "no option"
CHECK = "--cuda-fork-check"
SESSIONS = {
    "no plugin": ["-p", "no:cudafork"],
    BASE: [],
    CHECK: ["--cuda-fork-check"],
    "--cuda-fork-check=touch": ["--cuda-fork-check=touch"],
}
# Other plugins would add their own time to all sessions and hide ours.
LEFT_OUT = ("cacheprovider", "xdist", "hypothesispytest", "pytest_forked")
ALONE = [word for name in LEFT_OUT for word in ("-p", f"no:{name}")]


def seconds(folder: str, tests: int, args: list[str]) -> float:
    """Return the CPU seconds that one session takes, its children included.

    Raises:
        RuntimeError: not all of its tests passed.

    """
    own = ("PYTEST_", "_CUDAFORK_", "PYTHONDONTWRITEBYTECODE")  # users have compiled modules
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *ALONE, *args],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or f"{tests} passed" not in done.stdout:
        raise RuntimeError(f"pytest {args} ended with status {done.returncode}:\n{done.stdout}")
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("CPU time of a session with and without --cuda-fork-check.", rounds=21)
    made.add_argument(
        "--tests", type=at_least(1), default=1000, help="trivial tests (default 1000)"
    )
    options = made.parse_args()
    times: dict[str, list[float]] = {name: [] for name in SESSIONS}
    with tempfile.TemporaryDirectory() as folder:
        source = "\n".join(f"def test_{n}():\n    pass\n" for n in range(options.tests))
        Path(folder, "test_many.py").write_text(source, encoding="utf-8")
        for number in range(options.rounds + 1):
            for name, args in SESSIONS.items():
                took = seconds(folder, options.tests, args)
                if number:  # the first round fills caches
                    times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    least = {name: min(values) for name, values in times.items()}
    ratios = {name: value / least[BASE] for name, value in least.items()}
    rows = [
        [
            name,
            f"{value:.3f}",
            f"{ratios[name]:.3f}",
            f"{(value - least[BASE]) / options.tests * 1e6:+.0f}",
            f"{medians[name]:.3f}",
            f"{medians[name] / medians[BASE]:.3f}",
        ]
        for name, value in least.items()
    ]
    header = [
        f"{options.tests} trivial tests",
        "min CPU s",
        "ratio",
        "us a test",
        "median",
        "ratio",
    ]
    data = {
        "rounds": options.rounds,
        "tests": options.tests,
        "min_cpu_s": {name: round(value, 4) for name, value in least.items()},
        "median_cpu_s": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(ratios[CHECK], 4),
    }
    title = "Price of a checked session"
    publish("overhead", title, table(header, rows), data, save=options.save)


if __name__ == "__main__":
    main()
