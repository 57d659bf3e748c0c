"""Owns the price of the check: a session of trivial tests with it, without it, without the plugin.

It does not know where the time goes. Whole sessions are timed, start and end included; the three
kinds take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results_file import parser, publish, table

BASE = "no plugin"
SESSIONS = {
    BASE: ["-p", "no:cudafork"],
    "plugin, no check": [],
    "--cuda-fork-check": ["--cuda-fork-check"],
    "--cuda-fork-check=touch": ["--cuda-fork-check=touch"],
}
# Other plugins would add their own time to all sessions and hide ours.
ALONE = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:forked"]


def seconds(folder: str, tests: int, args: list[str]) -> float:
    """Return how long one session takes.

    Raises:
        RuntimeError: not all of its tests passed.

    """
    own = ("PYTEST_", "_CUDAFORK_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *ALONE, *args],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    took = time.perf_counter() - start
    if done.returncode != 0 or f"{tests} passed" not in done.stdout:
        raise RuntimeError(f"pytest {args} ended with status {done.returncode}:\n{done.stdout}")
    return took


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("Time of a session with and without --cuda-fork-check.", rounds=9)
    made.add_argument("--tests", type=int, default=1000, help="trivial tests (default 1000)")
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
    rows = [
        [
            name,
            f"{value:.3f}",
            f"{min(times[name]):.3f}",
            f"{value / medians[BASE]:.3f}",
            f"{(value - medians[BASE]) / options.tests * 1e6:+.0f}",
        ]
        for name, value in medians.items()
    ]
    header = [f"{options.tests} trivial tests", "median s", "min s", "ratio", "us a test"]
    data = {
        "rounds": options.rounds,
        "tests": options.tests,
        "median_s": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(medians["--cuda-fork-check"] / medians[BASE], 4),
    }
    title = "Time of a checked session"
    publish("overhead", title, table(header, rows), data, save=options.save)


if __name__ == "__main__":
    main()
