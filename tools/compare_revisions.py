"""Runs the benchmarks with the code of a revision and with that of this checkout, in turns.

    python tools/compare_revisions.py 3862bd5                      all, five rounds
    python tools/compare_revisions.py 3862bd5 --only import,pair --rounds 9
    python tools/compare_revisions.py 3862bd5 --quick              small sizes: does it work at all?

Both get a copy with an interpreter of their own (see `checkout`), with the same packages, and run
the benchmark scripts that they bring along; sizes are given here. In each round every benchmark is
run by both, one right after the other, the first of them in turns. A figure is a time; ``ratio`` is
the median over rounds of now to before, ``of least`` compares the smallest values of all rounds,
which neighbors on the machine disturb least. A figure is slower only if both exceed the limit.

Prints a table and a last line of JSON; returns 1 if a figure is slower than the limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from checkout import PROJECT, check_out, copy_checkout, make_interpreter

sys.path.insert(0, str(PROJECT / "benchmarks"))

from arguments import above_zero
from last_line import last_line
from results_file import parser, publish, table

LIMIT = 1.05
SECONDS = 1800.0
# Sessions whose trivial tests are isolated by one method: ms a test, the first of a session not.
_ISOLATION = """
import json, sys
sys.path.insert(0, "benchmarks")
import isolation_project, isolation_sessions
method, tests = sys.argv[1], int(sys.argv[2])
with isolation_sessions.project_folder() as folder:
    isolation_project.write_trivial(folder, tests, files=1)
    timing = isolation_sessions.run(folder, isolation_sessions.ours(method), tests)
print(json.dumps({"median_ms": timing.median, "session_s": timing.wall}))
"""


class Benchmark(NamedTuple):
    """A command after ``python``, and which figures of its last line of JSON count."""

    command: Sequence[str]
    figures: Callable[[dict[str, Any]], dict[str, float]]


def benchmarks(*, quick: bool) -> dict[str, Benchmark]:
    """Return what can be compared, by name."""

    def script(name: str, *options: str) -> list[str]:
        return [f"benchmarks/{name}.py", *options]

    made = {
        "import": Benchmark(
            script("bench_import", "--rounds", "3" if quick else "10"),
            lambda data: {"import, ms": data["median_ms"]["pytest-cudafork"]},
        ),
        "overhead": Benchmark(
            script("bench_overhead", "--rounds", "1" if quick else "3"),
            lambda data: {
                f"session, {name}, CPU s": seconds
                for name, seconds in data["min_cpu_s"].items()
                if name != "no plugin"
            },
        ),
        "audit": Benchmark(
            script(
                *("bench_imports", "--package", "torch", "--modules", "40" if quick else "500"),
                *("--fresh", "1", "--jobs", "2"),
            ),
            lambda data: {f"audit of {data['modules']} modules of torch, s": data["audit_s"]},
        ),
        "pair": Benchmark(
            script("bench_capture_pair", "--rounds", "3" if quick else "20"),
            lambda data: {
                f"capture_pair, {layers} layers, ms": times["pair"]
                for layers, times in data["milliseconds"].items()
            },
        ),
    }
    for method, tests in {"fork": 200, "forkserver": 200, "spawn": 8}.items():
        number = str(max(3, tests // 20) if quick else tests)
        made[method] = Benchmark(["-c", _ISOLATION, method, number], _isolation_figures(method))
    return made


def _isolation_figures(method: str) -> Callable[[dict[str, Any]], dict[str, float]]:
    return lambda data: {
        f"{method}, a test, ms": data["median_ms"],
        f"{method}, the session, s": data["session_s"],
    }


def compare(before: Sequence[float], now: Sequence[float]) -> dict[str, float]:
    """Return the ratios of figures of the same rounds, and the least and median of both sides."""
    pairs = zip(before, now, strict=True)
    return {
        "before": statistics.median(before),
        "now": statistics.median(now),
        "ratio": statistics.median(after / earlier for earlier, after in pairs),
        "of_least": min(now) / min(before),
    }


def take_turns(
    sides: dict[str, tuple[Path, Path]], chosen: dict[str, Benchmark], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Run each benchmark once a round on both sides; return figure to side to values."""
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for name, benchmark in chosen.items():
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            for side in sorted(sides, reverse=bool(number % 2)):
                checkout, python = sides[side]
                # one with a target of its own returns 1 where that is missed
                _, data = last_line(python, benchmark.command, checkout, SECONDS)
                for figure, value in benchmark.figures(dict(data)).items():
                    by_side = values.setdefault(figure, {each: [] for each in sides})
                    by_side[side].append(value)
    return values


def main() -> int:
    """Compare and print; 1 if a figure is slower than the limit."""
    made = parser("Benchmarks of two revisions, in turns.", rounds=5)
    made.add_argument("before", help="a revision, for example 3862bd5")
    made.add_argument("--only", default="", help=f"some of {','.join(benchmarks(quick=True))}")
    made.add_argument("--quick", action="store_true", help="small sizes")
    made.add_argument("--limit", type=above_zero, default=LIMIT, help=f"default {LIMIT}")
    options = made.parse_args()
    chosen = benchmarks(quick=options.quick)
    if wanted := [name for name in options.only.split(",") if name]:
        if unknown := set(wanted) - set(chosen):
            made.error(f"--only: {', '.join(unknown)}: use some of {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in wanted}
    command = ["git", "-C", str(PROJECT), "rev-parse", "--short", f"{options.before}^{{commit}}"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        made.error(f"git knows no revision {options.before!r}")
    with tempfile.TemporaryDirectory(prefix="compare-revisions-") as folder:
        sides = {}
        for side in ("before", "now"):
            code = Path(folder).resolve() / side
            check_out(code, found.stdout.strip()) if side == "before" else copy_checkout(code)
            sides[side] = (code, make_interpreter(code))
        values = take_turns(sides, chosen, options.rounds)
    compared = {figure: compare(**by_side) for figure, by_side in values.items()}
    slower = [
        figure
        for figure, of in compared.items()
        if min(of["ratio"], of["of_least"]) > options.limit
    ]
    rows = [[figure, *(f"{one:.3f}" for one in of.values())] for figure, of in compared.items()]
    data: dict[str, Any] = {
        "before": found.stdout.strip(),
        "rounds": options.rounds,
        "quick": options.quick,
    }
    rounded = {
        figure: {name: round(value, 4) for name, value in of.items()}
        for figure, of in compared.items()
    }
    data |= {"figures": rounded, "slower": slower}
    text = table(("figure", "before", "now", "ratio", "of least"), rows)
    publish("revisions", "Two revisions, in turns", text, data, save=options.save)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
