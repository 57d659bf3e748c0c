"""Asks the check about releases before and after a fix of an early initialization of CUDA.

The rows of ``release_pairs.toml`` were chosen by reading sources, before the check had run on any
of them. Each release is installed into an environment of its own; there a program executes the
row's statements and forks, under ``python -m pytest_cudafork run --guard``. The fork must be
refused before the fix, for the line that was written down, and made after it. Prints a table and a
last line of JSON; a row that cannot run on this machine stays in the table and says why.

    python benchmarks/release_pairs.py --folder build/release_pairs --save

Environments are kept in ``--folder`` and used again; without it they are temporary.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arguments import some
from release_environments import CannotInstallError, environment
from release_processes import started, written
from release_rows import LIST, Pair, read
from release_verdicts import Judged, Side, counts, notes, row, side
from results_file import parser, publish, table

TOPIC = "release_pairs"
HEADER = (
    "releases before, after",
    "bug",
    "torch's flag before",
    "told before",
    "right line",
    "silent after",
    "line gone after",
)
_PROGRAM = Path(__file__).resolve().with_name("release_program.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and show or keep the outcome; 1 if no pair ran."""
    made = _parser()
    options = made.parse_args(arguments)
    listed = read(LIST.read_text(encoding="utf-8"))
    pairs = [each for each in listed if options.only in each.package]
    some(made, "--only", options.only, pairs, dict.fromkeys(each.package for each in listed))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        judged = [judge(folder, pair) for pair in pairs]
    text, data = report(judged)
    publish(TOPIC, "Releases before and after a fix", text, data, save=options.save)
    return int(not any(each.ran for each in judged))


def _parser() -> argparse.ArgumentParser:
    made = parser("Releases before and after a fix.")
    made.add_argument("--only", default="", help="only packages whose name holds this word")
    made.add_argument("--folder", type=Path, help="where environments are kept")
    return made


def judge(folder: Path, pair: Pair) -> Judged:
    """Install both releases of a pair, run its statements in each, and judge what was said."""
    sides = {}
    for release in (pair.before, pair.after):
        print(f"{pair.package} {release} ...", file=sys.stderr, flush=True)
        try:
            sides[release] = look(environment(folder, pair.release(release)), pair)
        except CannotInstallError as error:
            sides[release] = Side(why_not=str(error))
    return Judged(pair, sides[pair.before], sides[pair.after])


def look(python: Path, pair: Pair) -> Side:
    """Run the statements of a pair under the check, with an interpreter that has one release."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program, outcome, told = (folder / n for n in ("program.py", "outcome.json", "report.json"))
        program.write_text(pair.run.strip() + "\n", encoding="utf-8")
        watch = ["-m", "pytest_cudafork", "run", "--guard", "--device", pair.device]
        watch += ["--report", str(told), "--json"]
        command = [str(python), *watch, str(_PROGRAM), str(program), str(outcome)]
        end = started(command, folder, dict(pair.environment))
        return side(written(told), written(outcome), end)


def report(judged: Sequence[Judged]) -> tuple[str, dict[str, Any]]:
    """Return the tables and notes, and the data for the line of JSON."""
    totals = counts(judged)
    words = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in totals.items())
    lines = [line for each in judged for line in notes(each)]
    text = "\n\n".join(
        [table(HEADER, [row(each) for each in judged]), f"{words}.", "\n".join(lines)]
    )
    missed = [each.name for each in judged if each.ran and not each.line]
    alarms = [each.name for each in judged if each.ran and each.after.told]
    not_run = [each.name for each in judged if not each.ran]
    return text, {"totals": totals, "missed": missed, "told_after": alarms, "not_run": not_run}


if __name__ == "__main__":
    sys.exit(main())
