"""Tests that crash, hang, leave things behind or break their surroundings: five promises for each.

Promised are: the right outcome of the test (with ours: in the right words, too); the tests before
and after it reported once each, as passed; what it printed before is in its report; no process,
file or shared memory is there when the session has ended; and a bounded time. Prints tables and a
last line of JSON. ``make bench BENCHARGS="--only faults"`` runs it beside the other plugins.

Each way runs a plain session first. A plugin of others that gets this wrong, as it does not work
with this pytest, is not measured, which the record says; with ours the run ends.

    python benchmarks/faults.py [--methods ...] [--xdist no] [--only WORD] [--save]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from arguments import at_least, some
from fault_cases import KINDS, Fault
from fault_cases import faults as all_faults
from fault_control import control
from fault_sessions import LIMIT, METHODS, PROMISES, lacking, measure, mounts_are_allowed
from results_file import parser, publish, table

Found = Mapping[str, Mapping[str, Sequence[bool]]]
"""For each way to run the faults, and each of these: which promises were kept."""

_GROUP = 6
_LETTERS = "onplt"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; the exit status tells whether each promise of ours was kept."""
    made = _parser()
    options = made.parse_args(arguments)
    chosen = [each for each in all_faults() if each.kind in options.kinds]
    faults = [each for each in chosen if options.only in each.name]
    some(made, "--only", options.only, faults, [each.name for each in chosen])
    xdists = {"no": [False], "yes": [True], "both": [False, True]}[options.xdist]
    ways = {
        f"{name} -n 2" if xdist else name: (name, xdist)
        for name in options.methods
        for xdist in xdists
    }
    if gone := lacking(ways.values()):
        made.error(
            f"{sys.executable} has no {', '.join(gone)}: `make .venv-bench/installed` makes an "
            "environment that has all, or choose others by --methods and --xdist"
        )
    unable = _unable(ways, options.jobs)
    of_ours = [way for way in unable if METHODS[ways[way][0]].ours]
    if of_ours or len(unable) == len(ways):
        raise SystemExit("\n".join(f"{way}: {unable[way]}" for way in of_ours or unable))
    able = {way: how for way, how in ways.items() if way not in unable}
    found = _campaign(faults, able, options.jobs, options.keep)
    text, data = report(faults, found, unable)
    publish(options.topic, "Faults, and which promises are kept", text, data, save=options.save)
    ours = [of for key, of in found.items() if METHODS[ways[key][0]].ours]
    return int(any(broken(kept) for of in ours for kept in of.values()))


def _parser() -> argparse.ArgumentParser:
    made = parser("Five promises for each fault.", topic="faults")
    made.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    made.add_argument("--xdist", choices=("no", "yes", "both"), default="both")
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    made.add_argument("--only", default="", help="only faults whose name holds this word")
    made.add_argument("--jobs", type=at_least(1), default=2, help="sessions at a time; default 2")
    made.add_argument(
        "--keep", type=Path, help="a file for what is judged; what it holds is not run again"
    )
    return made


def _unable(ways: Mapping[str, tuple[str, bool]], jobs: int) -> dict[str, str]:
    """Return the ways that get a plain session wrong, each with what is wrong."""
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(jobs) as pool:
        asked = {way: pool.submit(control, *how, Path(made)) for way, how in ways.items()}
        return {way: why for way, told in asked.items() if (why := told.result())}


def _campaign(
    faults: Sequence[Fault], ways: Mapping[str, tuple[str, bool]], jobs: int, keep: Path | None
) -> dict[str, dict[str, list[bool]]]:
    """Run all faults in each of these ways, some sessions at a time."""
    found: dict[str, dict[str, list[bool]]] = {way: {} for way in ways}
    for way, name, kept in _kept(keep):
        found.setdefault(way, {})[name] = kept

    def run(way: str, group: Sequence[Fault]) -> None:
        judged = measure(group, *ways[way], Path(made))
        if keep is not None:
            with open(keep, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps([way, *each]) + "\n" for each in judged.items()))
        found[way] |= judged
        print(f"{way}: {len(found[way])} of {len(faults)}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(jobs) as pool:
        todo = [
            (way, group)
            for way in ways
            for group in groups([f for f in faults if f.name not in found[way]], ways[way][0])
        ]
        for done in [pool.submit(run, *each) for each in todo]:
            done.result()
    return {way: {each.name: found[way][each.name] for each in faults} for way in ways}


def _kept(keep: Path | None) -> list[tuple[str, str, list[bool]]]:
    """Return what an earlier run has judged: the way, the fault, the promises."""
    if keep is None or not keep.exists():
        return []
    return [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]


def groups(faults: Sequence[Fault], method: str) -> list[list[Fault]]:
    """Return which faults share a session.

    None do where no time limit is known: one that hangs would take the others of its session along.
    """
    size = _GROUP if METHODS[method].limits else 1
    return [list(faults[start : start + size]) for start in range(0, len(faults), size)]


def broken(kept: Sequence[bool]) -> str:
    """Return the names of the promises that were not kept."""
    return ", ".join(name for name, one in zip(PROMISES, kept, strict=True) if not one)


def letters(kept: Sequence[bool]) -> str:
    """Return a letter for each promise that was not kept, for a cell of the table."""
    return "".join(letter for letter, one in zip(_LETTERS, kept, strict=True) if not one)


def report(
    faults: Sequence[Fault], found: Found, unable: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return the tables, and the data for the line of JSON.

    Args:
        faults: what was run.
        found: which promises were kept.
        unable: the ways that were not measured, each with why.

    """
    totals = {
        key: {name: sum(kept[i] for kept in of.values()) for i, name in enumerate(PROMISES)}
        | {"all five": sum(all(kept) for kept in of.values())}
        for key, of in found.items()
    }
    header = ("method", *PROMISES, "all five")
    rows = [(key, *map(str, numbers.values())) for key, numbers in totals.items()]
    each_one = [(each.name, *(letters(of[each.name]) for of in found.values())) for each in faults]
    shared = "its own" if mounts_are_allowed() else "that of the machine, judged by names"
    peers = sorted(
        f"{each.name} {each.version}" for each in distributions() if each.name in METHODS
    )
    not_measured = [f"- not measured: {way}: {why}" for way, why in unable.items()]
    text = "\n\n".join([
        f"{len(faults)} faults, time limit {LIMIT} s, `/dev/shm` of a session: {shared}. "
        f"{', '.join(peers)}.",
        table(header, rows),
        *(["\n".join(not_measured)] if unable else []),
        "Promises not kept: o outcome, n neighbours (the tests before and after it), p what it "
        "printed, l something left, t time.",
        table(("fault", *found), each_one),
    ])  # fmt: skip
    data = {
        "faults": len(faults),
        "totals": totals,
        "not_kept": {
            key: {name: broken(kept) for name, kept in of.items() if not all(kept)}
            for key, of in found.items()
        },
        "not_measured": dict(unable),
    }
    return text, data


if __name__ == "__main__":
    sys.exit(main())
