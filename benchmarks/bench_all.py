"""Runs all benchmarks of a kind of machine, and compares their ratios with the last record.

    make bench                                  on a CPU
    make bench-gpu                              on a GPU
    make bench BENCHARGS="--save"               and keeps a record in benchmarks/results/
    make bench BENCHARGS="--against-last"       and fails where a ratio has got worse

Each benchmark runs some times, in turns with the others; a figure is the median, and least and
most stand beside it. Every figure is a ratio of two things of the same run, less being better.

Against the last record a figure is worse if its median is more than ``--allowed`` above that of
the record and its least above the record's most. A figure that the record has and that was not
measured is told, and fails too; so does a benchmark that fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import record_guard
from arguments import above_zero, at_least
from record_parts import CPU, GPU, Part
from results_file import publish, table

PROJECT = Path(__file__).resolve().parent.parent
TOPIC = "record"
_FOREIGN = (
    "PYTEST_",
    "_CUDAFORK_",
    "PYTHON",
)  # users have compiled modules, and no settings of ours
_SECONDS = 1800.0
HEADER = ("ratio, less is better", "median", "least", "most", "runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and compare; 1 if something failed or is worse."""
    options = _options(arguments)
    device, listed = ("gpu", GPU) if options.gpu else ("cpu", CPU)
    chosen = {name: listed[name] for name in options.only or listed}
    start = time.monotonic()
    values, failed = take_turns(chosen, options.rounds, options.peers)
    text, data = report(values, failed, time.monotonic() - start)
    complaints = list(failed.values())
    if options.against_last:
        said, worse = record_guard.compare(device, data["figures"], options.allowed, list(chosen))
        text += f"\n\n{said}"
        complaints += worse
    publish(TOPIC, "What everything costs", text, data, save=options.save)
    return 1 if complaints else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All benchmarks of a kind of machine.")
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="default 3")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some of the parts")
    parser.add_argument("--peers", default="", help="an interpreter that has pytest-forked")
    parser.add_argument("--save", action="store_true", help="also write a file in results/")
    parser.add_argument("--against-last", action="store_true", help="fail where it got worse")
    parser.add_argument(
        "--allowed", type=above_zero, default=record_guard.ALLOWED, help="default %(default)s"
    )
    options = parser.parse_args(arguments)
    listed = GPU if options.gpu else CPU
    if unknown := set(options.only or ()) - set(listed):
        parser.error(f"--only: {', '.join(sorted(unknown))}: use some of {', '.join(listed)}")
    return options


def take_turns(
    parts: Mapping[str, Part], rounds: int, peers: str
) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """Run the parts in turns; return part to figure to values, and why some did not run."""
    values: dict[str, dict[str, list[float]]] = {name: {} for name in parts}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name, part in parts.items():
            if name in failed or (part.once and number):
                continue
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            try:
                for figure, value in measured(part, peers).items():
                    values[name].setdefault(figure, []).append(value)
            except (RuntimeError, KeyError, OSError, subprocess.SubprocessError) as error:
                failed[name] = f"{name}: {error}"
    return values, failed


def measured(part: Part, peers: str) -> dict[str, float]:
    """Run one part once and return its figures.

    Raises:
        RuntimeError: it cannot run here, or its last line is no JSON.

    """
    if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
        raise RuntimeError(f"not measured: it needs {', '.join(missing)}")
    if part.peers and not peers:
        raise RuntimeError("not measured: --peers names no interpreter that has pytest-forked")
    python = peers if part.peers else sys.executable
    done = subprocess.run(
        [str(Path(python).absolute()), *part.command],
        cwd=PROJECT,
        env={name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    try:  # a benchmark with a target of its own returns 1 where that is missed
        return part.figures(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError) as error:
        end = (done.stderr or done.stdout).strip()[-500:]
        raise RuntimeError(f"{part.script} ended with {done.returncode}: {end}") from error


def report(
    values: Mapping[str, Mapping[str, Sequence[float]]], failed: Mapping[str, str], seconds: float
) -> tuple[str, dict[str, Any]]:
    """Return the table with what did not run, and the data for the line of JSON."""
    rows, figures = [], {}
    for name, of_part in values.items():
        for figure, each in of_part.items():
            middle, least, most = statistics.median(each), min(each), max(each)
            rows.append([figure, *(f"{one:.3f}" for one in (middle, least, most)), str(len(each))])
            figures[figure] = {
                "part": name,
                "median": round(middle, 4),
                "least": round(least, 4),
                "most": round(most, 4),
                "runs": len(each),
            }
    load = os.getloadavg()
    machine = {
        "processor": processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(one, 2) for one in load],
        "system": platform.release(),
    }
    words = f"{machine['processor']}, {machine['cores']} cores, load {load[0]:.1f} at the end"
    shown = [table(HEADER, rows), f"{words}; {seconds:.0f} s."]
    shown += [f"- not in it: {' '.join(why.split())}" for why in failed.values()]
    data = {"machine": machine, "seconds": round(seconds), "figures": figures}
    return "\n\n".join(shown), data | {"failed": dict(failed)}


def processor(text: str) -> str:
    """Return the name of the processor, of what ``/proc/cpuinfo`` says."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
