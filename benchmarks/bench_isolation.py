"""Measures isolation: our methods against pytest-forked, spawn and ``pytest NODEID``.

All peers run the same test files, torch imported, in sessions that take turns. Needs pytest-forked
and a pytest that it works with; ``make .venv-bench/installed`` makes an environment that has both.
The parts ``heap``, ``spawn``, ``hidden``, ``many`` and ``cuda`` do without.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

import isolation_parts as parts
import pytest
from arguments import at_least
from isolation_targets import TARGETS
from results_file import parser, publish, table

PARTS = ("forkserver", "fork", "heap", "spawn", "hidden", "many", "cuda")
_NEED_FORKED = {"forkserver", "fork"}
_FIRST_WITHOUT_FORKED = (9, 2)


def unfit() -> str:
    """Return why pytest-forked cannot be measured by this interpreter, or ""."""
    if importlib.util.find_spec("pytest_forked") is None:
        return "pytest-forked is not installed here"
    if pytest.version_tuple[:2] >= _FIRST_WITHOUT_FORKED:
        return f"pytest-forked fails every test on pytest {pytest.__version__}"
    return ""


def arguments() -> argparse.Namespace:
    """Return the command line."""
    made = parser("Cost of isolated tests, against real peers.", rounds=5)
    made.add_argument(
        "--tests", type=at_least(1), default=200, help="tests in a session (default 200)"
    )
    made.add_argument(
        "--sample", type=at_least(1), default=10, help="tests of slow peers (default 10)"
    )
    made.add_argument(
        "--many", type=at_least(1), default=10_000, help="tests of `many` (default 10000)"
    )
    made.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    options = made.parse_args()
    options.only = options.only.split(",")
    for part in options.only:
        if part not in PARTS:
            made.error(f"--only: {part!r} is not a part: use some of {', '.join(PARTS)}")
    if reason := _NEED_FORKED & set(options.only) and unfit():
        made.error(
            f"{reason}. Run `make .venv-bench/installed && .venv-bench/bin/python "
            "benchmarks/bench_isolation.py`. Or leave pytest-forked out, with --only "
            "heap,spawn,hidden,many"
        )
    return options


def main() -> int:
    """Measure, print, keep the results if that is asked for; 1 if a target was missed."""
    options = arguments()
    sizes = parts.Sizes(options.tests, options.rounds, options.sample, options.many)
    out = parts.Outcome()
    if _NEED_FORKED & set(options.only):
        parts.forks(out, sizes, options.only)
    for name in ("heap", "spawn", "hidden", "many", "cuda"):
        if name in options.only:
            getattr(parts, name)(out, sizes)
    judged = [
        [TARGETS[name].text, f"{found['value']:.3f}", _limit(name), "yes" if found["met"] else "NO"]
        for name, found in out.targets.items()
    ]
    text = f"{table(parts.HEADER, out.rows)}\n\n{table(['target', 'is', 'limit', 'met'], judged)}"
    data = {**sizes._asdict(), "targets": out.targets, "figures": out.figures}
    topic = "isolation" if set(options.only) >= {"forkserver", "fork"} else "isolation_part"
    publish(topic, "Price of isolation", text, data, save=options.save)
    return 0 if all(found["met"] for found in out.targets.values()) else 1


def _limit(name: str) -> str:
    target = TARGETS[name]
    return f"{'>=' if target.at_least else '<='} {target.limit:g}"


if __name__ == "__main__":
    sys.exit(main())
