"""Measures the import audit: a whole package against a fresh interpreter for each module.

    python benchmarks/bench_imports.py                    500 modules of torch
    python benchmarks/bench_imports.py --package vllm --modules 0 --save

The fresh interpreters import one module each, with nothing watched: one after the other, as a loop
in a shell would, and as many at a time as the audit has jobs. Their time is extrapolated from a
sample. Verdicts are counted, not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from arguments import at_least
from results_file import parser, publish, table

from pytest_cudafork.imports.api import run
from pytest_cudafork.imports.audit import plan
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import FoundModule

SEED = 0
WANTED_RATIO = 50.0
_FRESH_SECONDS = 300.0


def arguments() -> argparse.Namespace:
    """Return the command line."""
    made = parser("Price of the import audit, against fresh interpreters.", rounds=1)
    made.add_argument("--package", default="torch")
    made.add_argument("--modules", type=at_least(0), default=500, help="a sample of them; 0: all")
    made.add_argument("--fresh", type=at_least(0), default=30, help="modules to import afresh")
    made.add_argument("--jobs", type=at_least(1), default=len(os.sched_getaffinity(0)))
    made.add_argument("--confirm", action="store_true", help="with confirmations")
    return made.parse_args()


def choose(modules: list[FoundModule], count: int) -> list[FoundModule]:
    """Return a seeded sample, in order of names; all for 0."""
    if not count or count >= len(modules):
        return modules
    chosen = random.Random(SEED).sample(modules, count)
    return sorted(chosen, key=lambda module: module.name)


def fresh_seconds(modules: list[FoundModule], jobs: int) -> float:
    """Return the wall time of importing each afresh, so many at a time."""
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def one(module: FoundModule) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-c", f"import {module.name}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                check=False,
                timeout=_FRESH_SECONDS,
            )

    start = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, modules))
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, keep the results if that is asked for; 1 if the target was missed."""
    options = arguments()
    found = plan.find_all((options.package,), ())
    modules = choose(found[options.package], options.modules)
    sample = choose(modules, options.fresh)
    fresh_seconds(sample, options.jobs)  # warms the disk and writes the bytecode
    scale = len(modules) / len(sample)
    rounds = []
    for _ in range(options.rounds):
        in_a_row = fresh_seconds(sample, 1) * scale
        at_once = fresh_seconds(sample, options.jobs) * scale
        start = time.perf_counter()
        settings = AuditSettings(jobs=options.jobs)
        checked = run({options.package: modules}, settings, confirm=options.confirm)
        rounds.append((in_a_row, at_once, time.perf_counter() - start))
    in_a_row, at_once, audit = sorted(rounds, key=lambda each: each[0] / each[2])[len(rounds) // 2]
    records = [each.record for each in checked]
    verdicts = Counter(record.verdict.value for record in records)
    lines = Counter(record.where for record in records if record.verdict.touched)
    rows = [
        ["modules", str(len(modules))],
        [f"audit, {options.jobs} at a time, s", f"{audit:.1f}"],
        ["fresh interpreters, one after the other, s", f"{in_a_row:.0f}"],
        ["ratio", f"{in_a_row / audit:.1f}"],
        [f"fresh interpreters, {options.jobs} at a time, s", f"{at_once:.0f}"],
        ["ratio", f"{at_once / audit:.1f}"],
        *([verdict, str(count)] for verdict, count in verdicts.most_common()),
        *([_short(line), str(count)] for line, count in lines.most_common()),
    ]
    data: dict[str, Any] = {
        "package": options.package,
        "modules": len(modules),
        "sample": len(sample),
        "jobs": options.jobs,
        "confirm": options.confirm,
        "audit_s": round(audit, 2),
        "fresh_in_a_row_s": round(in_a_row, 1),
        "fresh_at_once_s": round(at_once, 1),
        "ratio_in_a_row": round(in_a_row / audit, 2),
        "ratio_at_once": round(at_once / audit, 2),
        "verdicts": dict(verdicts),
        "lines": {_short(line): count for line, count in lines.items()},
    }
    publish(
        f"imports_{options.package}",
        f"Price of the import audit: {options.package}",
        table([options.package, "is"], rows),
        data,
        save=options.save,
    )
    return 0 if in_a_row / audit >= WANTED_RATIO else 1


def _short(line: str) -> str:
    """Return a place without the folder that packages are installed in."""
    return line.rpartition("site-packages/")[2]


if __name__ == "__main__":
    sys.exit(main())
