"""Runs the benchmarks of a kind of machine, and compares their figures with the last ones kept.

    make bench                                  ratios, on a CPU
    make bench BENCHARGS="--all"                and what takes hours: faults, soak, fuzzing
    make bench BENCHARGS="--only soak faults"   some of them
    make bench BENCHARGS="--list"               the parts, how long each takes, what it needs
    make bench BENCHARGS="--save"               and keeps records in benchmarks/results/
    make bench BENCHARGS="--against-last"       and fails where a figure has got worse
    make bench-gpu                              the same on a GPU

Parts whose figures are ratios run some times, in turns; a figure is the median, and least and most
stand beside it. Every figure is a ratio of two things of the same run, less being better. A long
part (``--all``, or named) runs once, after them, and keeps a record of its own, which the record of
all names; its exit status is its verdict. Where there are several GPUs, long parts that need one
run side by side, each on its own, but for those that say why nothing may run beside them: they
follow. What fails does not keep the others from running.

Against the last record a figure is worse if its median is more than ``--allowed`` above that of
the record and its least above the record's most; one of counts, if it is above at all. Parts in
turns of which a figure looks so are measured as often again before it counts. A figure that the
record has and that was not measured is told, and fails too. So does a part that fails, and one that
cannot run here, if it was named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import queue
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import part_table
import record_guard
from arguments import above_zero
from last_line import last_line
from long_parts import LONG_CPU, LONG_GPU
from record_parts import CPU, GPU, ROUNDS, Part
from results_file import PROJECT, machine, parser, publish, table

HEADER = ("ratio, less is better", "median", "least", "most", "runs")
_ENDED = "ended by hand before it was done"
_ERRORS = (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, OSError)
"""Of a run, or of a reader of figures that are not as it expects them."""


class Found(NamedTuple):
    """What the parts have said; each by the part's name.

    Attributes:
        values: the values of each figure.
        seconds: how long its runs took together.
        records: the name of its own record.
        failed: why it failed.
        absent: why it cannot run here.

    """

    values: dict[str, dict[str, list[float]]]
    seconds: dict[str, float]
    records: dict[str, str]
    failed: dict[str, str]
    absent: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and compare; 1 if something failed or is worse."""
    options = _options(arguments)
    device = "gpu" if options.gpu else "cpu"
    chosen = {name: options.listed[name] for name in _chosen(options)}
    if options.list:
        print(shown(chosen, options.rounds))
        return 0
    print(shown(chosen, options.rounds), file=sys.stderr, flush=True)
    earlier = record_guard.last(device, chosen)
    start = time.monotonic()
    found = take_turns(chosen, options.rounds, options.peers, save=options.save)
    text, data = report(found, time.monotonic() - start)
    worse: list[str] = []
    if options.against_last:
        tried = {name: part for name, part in chosen.items() if name not in found.absent}
        compared = tried if options.all else chosen
        doubtful = record_guard.doubtful(earlier, data["figures"], options.allowed, compared)
        if again := {name: chosen[name] for name in doubtful if not chosen[name].long}:
            print(f"worse than before, so once more: {', '.join(again)}", file=sys.stderr)
            take_turns(again, options.rounds, options.peers, found=found)
            text, data = report(found, time.monotonic() - start)
        said, worse = record_guard.compare(earlier, data["figures"], options.allowed, compared)
        others = record_guard.of_other_processors(earlier[0], machine()["processor"])
        text += "\n\n".join(["", said, *others])
    complaints = [*found.failed.values(), *(found.absent.values() if options.only else ()), *worse]
    publish(record_guard.TOPIC, "What everything costs", text, data, save=options.save)
    for each in complaints:
        print(f"failed: {' '.join(each.split())}", file=sys.stderr)
    return 1 if complaints else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser("The benchmarks of a kind of machine.", rounds=ROUNDS)
    made.add_argument("--gpu", action="store_true", help="those that need a GPU")
    made.add_argument("--only", nargs="+", metavar="PART", help="some of the parts")
    made.add_argument("--all", action="store_true", help="the long ones, too")
    made.add_argument("--list", action="store_true", help="show the parts and run none")
    made.add_argument("--peers", default="", help="an interpreter that has pytest-forked")
    made.add_argument("--against-last", action="store_true", help="fail where it got worse")
    made.add_argument(
        "--allowed", type=above_zero, default=record_guard.ALLOWED, help="default %(default)s"
    )
    options = made.parse_args(arguments)
    options.listed = {**GPU, **LONG_GPU} if options.gpu else {**CPU, **LONG_CPU}
    if unknown := set(options.only or ()) - set(options.listed):
        made.error(f"--only: {', '.join(sorted(unknown))}: use some of {', '.join(options.listed)}")
    return options


def _chosen(options: argparse.Namespace) -> list[str]:
    if options.only:
        return [name for name in options.listed if name in options.only]
    every = options.all or options.list
    return [name for name, part in options.listed.items() if every or not part.long]


def shown(parts: Mapping[str, Part], rounds: int) -> str:
    """Return a table of the parts, with how long they take."""
    whole = part_table.minutes(parts, rounds)
    about = f"{whole:.0f}" if whole >= 1 else f"{whole:.1f}"
    listed = table(part_table.HEADER, part_table.rows(parts, rounds))
    return f"{listed}\n\nAbout {about} minutes on two cores with nothing else."


def take_turns(
    parts: Mapping[str, Part],
    rounds: int,
    peers: str,
    *,
    save: bool = False,
    found: Found | None = None,
) -> Found:
    """Run the parts: some times in turns, and then the long ones; an interrupt ends it early.

    Args:
        parts: what is to be run, by name.
        rounds: how many times those in turns run.
        peers: an interpreter that has pytest-forked, or "".
        save: whether long ones keep their records.
        found: what was found before, to which this is added.

    """
    found = found or Found({name: {} for name in parts}, {}, {}, {}, {})
    turns = [name for _ in range(rounds) for name, part in parts.items() if not part.long]
    long = [name for name, part in parts.items() if part.long]
    left = [*turns, *long]

    def run(name: str, card: str = "") -> None:
        if name not in found.failed and name not in found.absent:
            _one(name, parts[name], peers, found, card, save=save)
        left.remove(name)

    try:
        for name in turns:
            run(name)
        for name in _side_by_side(run, parts, long):
            run(name)
    except KeyboardInterrupt:  # what has been measured is not lost
        found.failed.update({name: f"{name}: {_ENDED}" for name in left})
    return found


def _side_by_side(
    run: Callable[[str, str], None], parts: Mapping[str, Part], long: Sequence[str]
) -> list[str]:
    """Run those that need one GPU, each on one of its own, longest first; return the others."""
    those = [name for name in long if parts[name].gpus == 1 and not parts[name].alone]
    cards = visible_cards()
    if len(cards) < 2 or len(those) < 2:
        return list(long)
    those.sort(key=lambda name: -parts[name].minutes)
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    for card in cards:
        free.put(card)

    def on_a_card(name: str) -> None:
        card = free.get()
        try:
            run(name, card)
        finally:
            free.put(card)

    with ThreadPoolExecutor(len(cards)) as pool:
        try:
            for done in [pool.submit(on_a_card, name) for name in those]:
                done.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [name for name in long if name not in those]


def _one(name: str, part: Part, peers: str, found: Found, card: str, *, save: bool) -> None:
    """Run one part once and note what it said, or why it did not run."""
    if why := missing(part, peers):
        found.absent[name] = f"{name}: not measured: {why}"
        return
    where = f" on GPU {card}" if card else ""
    print(f"{name}{where}, from {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        _measure(name, part, peers, found, card, save=save)
    except _ERRORS as error:
        found.failed[name] = f"{name}: {error}"
    finally:
        took = time.monotonic() - start
        found.seconds[name] = found.seconds.get(name, 0.0) + took


def visible_cards() -> list[str]:
    """Return the GPUs that a program sees here, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [card for card in map(str.strip, chosen.split(",")) if card]
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def missing(part: Part, peers: str) -> str:
    """Return what this machine lacks for a part; "" for nothing."""
    gone = [name for name in part.needs if importlib.util.find_spec(name) is None]
    gone = [f"{', '.join(gone)} ({part.setup})"] if gone and part.setup else gone
    gone += ["an interpreter with pytest-forked (--peers)"] if part.peers and not peers else []
    cards = len(visible_cards())
    plural = "s" * (part.gpus > 1)
    gone += [f"{part.gpus} GPU{plural}, there are {cards}"] if part.gpus > cards else []
    return f"it needs {', '.join(gone)}" if gone else ""


def _measure(name: str, part: Part, peers: str, found: Found, card: str, *, save: bool) -> None:
    """Run one part once, on one GPU if ``card`` names it, and note what it said.

    Raises:
        RuntimeError: its last line is no JSON, or its verdict is that something is wrong.

    """
    command = [*part.command, *(["--save"] if save and part.long else [])]
    python = peers if part.peers else sys.executable
    more = {"CUDA_VISIBLE_DEVICES": card} if card else {}
    status, data = last_line(python, command, PROJECT, part.seconds, aloud=part.long, more=more)
    for figure, value in part.figures(data).items():
        found.values[name].setdefault(figure, []).append(value)
    if "record" in data and part.long:
        found.records[name] = data["record"]
    # one in turns may have a target of its own, which is missed on a busy machine
    if status and part.long:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")


def report(found: Found, seconds: float) -> tuple[str, dict[str, Any]]:
    """Return the table with what did not run, and the data for the line of JSON."""
    rows, figures = [], {}
    for name, of_part in found.values.items():
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
    text = [table(HEADER, rows)] if rows else []
    ran = f"{seconds:.0f} s for {', '.join(found.seconds)}."
    text.append(ran if found.seconds else "Nothing was measured.")
    lines = [f"- {name} has its own record: {file}" for name, file in found.records.items()]
    lines += [f"- failed: {' '.join(why.split())}" for why in found.failed.values()]
    lines += [f"- not in it: {' '.join(why.split())}" for why in found.absent.values()]
    parts = {
        name: {
            "seconds": round(found.seconds.get(name, 0.0)),
            "record": found.records.get(name, ""),
            "failed": found.failed.get(name, ""),
            "absent": found.absent.get(name, ""),
        }
        for name in found.values
    }
    text += ["\n".join(lines)] if lines else []
    return "\n\n".join(text), {"seconds": round(seconds), "parts": parts, "figures": figures}


if __name__ == "__main__":
    sys.exit(main())
