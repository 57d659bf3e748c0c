"""Tests that crash, hang, leave things behind or break their surroundings: five promises for each.

Promised are: the right outcome of the test (with ours: in the right words, too); the tests before
and after it reported once each, as passed; what it printed before is in its report; no process,
file or shared memory is there when the session has ended; and a bounded time. Prints tables and a
last line of JSON. ``make bench-faults`` runs it beside the other plugins. Usage: ``python
benchmarks/faults.py [--methods ...] [--xdist no] [--only WORD] [--save]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from arguments import at_least
from fault_cases import KINDS, Fault
from fault_cases import faults as all_faults
from fault_sessions import LIMIT, METHODS, PROMISES, measure, mounts_are_allowed
from results_file import publish, table

Found = Mapping[str, Mapping[str, Sequence[bool]]]
"""For each way to run the faults, and each of these: which promises were kept."""

_GROUP = 12
_LETTERS = "onplt"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; the exit status tells whether each promise of ours was kept."""
    options = _parser().parse_args(arguments)
    chosen = [each for each in all_faults() if each.kind in options.kinds]
    faults = [each for each in chosen if options.only in each.name]
    xdists = {"no": [False], "yes": [True], "both": [False, True]}[options.xdist]
    ways = {
        f"{name} -n 2" if xdist else name: (name, xdist)
        for name in options.methods
        for xdist in xdists
    }
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(options.jobs) as pool:
        judged = pool.map(lambda way: _campaign(faults, way[0], way[1], Path(made)), ways.values())
        found = dict(zip(ways, judged, strict=True))
    text, data = report(faults, found)
    publish(options.topic, "Faults, and which promises are kept", text, data, save=options.save)
    ours = [of for key, of in found.items() if METHODS[ways[key][0]].ours]
    return int(any(broken(kept) for of in ours for kept in of.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Five promises for each fault.")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--xdist", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--topic", default="faults", help="name of the file in results/")
    parser.add_argument("--only", default="", help="only faults whose name holds this word")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="sessions at a time; default 2")
    parser.add_argument("--save", action="store_true", help="also write a file in results/")
    return parser


def _campaign(
    faults: Sequence[Fault], method: str, xdist: bool, folder: Path
) -> dict[str, list[bool]]:
    """Run all faults by one method."""
    found: dict[str, list[bool]] = {}
    for group in groups(faults, method):
        found |= measure(group, method, xdist, folder)
        way = f"{method}{' -n 2' * xdist}"
        print(f"{way}: {len(found)} of {len(faults)}", file=sys.stderr, flush=True)
    return {each.name: found[each.name] for each in faults}


def groups(faults: Sequence[Fault], method: str) -> list[list[Fault]]:
    """Return which faults share a session.

    Those that would surely end it have one of their own: hangs where no time limit is known, and
    everything in the process of pytest itself.
    """
    surely = () if METHODS[method].limits else KINDS if method == "none" else ("hangs",)
    together = [each for each in faults if each.kind not in surely]
    return [
        *(together[start : start + _GROUP] for start in range(0, len(together), _GROUP)),
        *([each] for each in faults if each.kind in surely),
    ]


def broken(kept: Sequence[bool]) -> str:
    """Return the names of the promises that were not kept."""
    return ", ".join(name for name, one in zip(PROMISES, kept, strict=True) if not one)


def letters(kept: Sequence[bool]) -> str:
    """Return a letter for each promise that was not kept, for a cell of the table."""
    return "".join(letter for letter, one in zip(_LETTERS, kept, strict=True) if not one)


def report(faults: Sequence[Fault], found: Found) -> tuple[str, dict[str, Any]]:
    """Return the tables, and the data for the line of JSON."""
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
    text = "\n\n".join([
        f"{len(faults)} faults, time limit {LIMIT} s, `/dev/shm` of a session: {shared}. "
        f"{', '.join(peers)}.",
        table(header, rows),
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
    }
    return text, data


if __name__ == "__main__":
    sys.exit(main())
