"""Runs test files of vLLM with its own helpers and with the lines that stand for them, in turn.

Two copies of the tests are made. In one, the helpers in ``tests/utils.py`` that give a test a
process of its own or wait for memory of GPUs are replaced by the lines of the docs. Each file is a
session of its own, first with the helpers, without the plugin, then with the lines, and nothing
else may use the GPUs meanwhile: an engine measures their memory when it starts. Every test with an
outcome on both sides is compared: the outcomes of its phases as pytest-reportlog writes them, and
the first line of what it failed with.

    python -m tools.vllm_helpers build/vllm-0.20.2 tests/v1/shutdown --python env/bin/python

The interpreter has that release of vLLM, what its tests import, this package, pytest-reportlog and
pytest-timeout. What ``--folder`` has of an earlier call is not run again; ``--table`` prints it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from arguments import above_zero
from results_file import parser, publish, table

from tools.foreign_suites import Outcomes, outcomes_of
from tools.kept_rows import add_row, read_rows
from tools.repeat_under_load import call_pytest
from tools.suite_archives import PROJECT

LINES = PROJECT / "docs" / "examples" / "come_from" / "vllm_utils.py"
HELPERS = {
    "create_new_process_for_each_test",
    "fork_new_process_for_each_test",
    "multi_gpu_test",
    "spawn_new_process_for_each_test",
    "wait_for_gpu_memory_to_clear",
}
SIDES = {"theirs": ("-p", "no:cudafork"), "ours": ()}
"""Options of pytest on each side."""


class HelpersError(Exception):
    """The tests are not those that this knows how to change."""


@dataclass(frozen=True)
class Compared:
    """What became of a file.

    Attributes:
        file: its path.
        seconds: of each side.
        ended: the sides that their limit ended.
        same: outcomes that both sides have, and how many tests have each.
        differ: a line for each test whose outcomes differ.
        words: how many tests failed on both sides with another first line.
        missing: how many tests have an outcome on one side only.

    """

    file: str
    seconds: Mapping[str, float]
    ended: Sequence[str]
    same: Mapping[str, int]
    differ: Sequence[str]
    words: int
    missing: int


def replaced(text: str, lines: str) -> tuple[str, int]:
    """Return vLLM's ``tests/utils.py`` with the lines in the place of its helpers.

    Args:
        text: the file.
        lines: what stands for the helpers.

    Returns:
        The changed file, and how many lines of it went.

    Raises:
        HelpersError: one of the helpers is not there.

    """
    found = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name in HELPERS
    ]
    if missing := HELPERS - {node.name for node in found}:
        raise HelpersError(f"tests/utils.py has no {', '.join(sorted(missing))}")
    rows, gone = text.splitlines(keepends=True), 0
    for number, node in reversed(list(enumerate(found))):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
        assert node.end_lineno is not None
        gone += node.end_lineno - first
        rows[first : node.end_lineno] = [lines] if number == 0 else []
    return "".join(rows), gone


def prepare(source: Path, folder: Path) -> int:
    """Make both copies of the tests; return how many lines the replaced helpers had."""
    gone = 0
    for side in SIDES:
        root = folder / side
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        shutil.copytree(source / "tests", root / "tests")
        for name in ("pyproject.toml", "requirements", "examples"):
            if (source / name).is_dir():
                shutil.copytree(source / name, root / name)
            elif (source / name).exists():
                shutil.copy(source / name, root / name)
    utils = folder / "ours" / "tests" / "utils.py"
    text, gone = replaced(utils.read_text(encoding="utf-8"), LINES.read_text(encoding="utf-8"))
    utils.write_text(text, encoding="utf-8")
    return gone


def run(
    folder: Path, side: str, python: Path, file: str, limit: float
) -> tuple[Outcomes, dict[str, str], float, bool]:
    """Run a file on one side.

    Returns:
        The outcomes, the first lines of failures, the seconds, and whether the limit ended it.

    """
    label = file.replace("/", "_")
    log, report = (folder / "logs" / f"{label}-{side}.{kind}" for kind in ("log", "jsonl"))
    log.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    options = ["-p", "no:cacheprovider", f"--report-log={report}", *SIDES[side]]
    # tests that are parametrized by sets would have other names in the other session
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    began = time.monotonic()
    command = [str(python), "-m", "pytest", *options, file]
    status = call_pytest(command, folder / side, log, limit, environment)
    seconds = time.monotonic() - began
    if not report.exists():
        return {}, {}, seconds, status is None
    return outcomes_of(report), first_lines(report), seconds, status is None


def first_lines(report: Path) -> dict[str, str]:
    """Return for each test that failed the first line of the error, as pytest tells it."""
    found = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("$report_type") == "TestReport" and entry["outcome"] == "failed":
            told = entry["longrepr"]
            crash = told.get("reprcrash") if isinstance(told, dict) else None
            words = crash["message"] if crash else str(told)
            found[entry["nodeid"]] = words.strip().partition("\n")[0]
    return found


def compare(folder: Path, python: Path, file: str, limit: float) -> Compared:
    """Run a file on both sides, one after the other."""
    ran = {side: run(folder, side, python, file, limit) for side in SIDES}
    theirs, ours = (ran[side][0] for side in SIDES)
    both = sorted(theirs.keys() & ours.keys())
    told, said = (ran[side][1] for side in SIDES)
    return Compared(
        file,
        {side: round(ran[side][2], 1) for side in SIDES},
        [side for side in SIDES if ran[side][3]],
        dict(Counter(theirs[test] for test in both if theirs[test] == ours[test])),
        [
            f"{test}: {theirs[test]} -> {ours[test]} ({said.get(test, told.get(test, ''))})"
            for test in both
            if theirs[test] != ours[test]
        ],
        sum(told.get(test) != said.get(test) for test in both if theirs[test] == ours[test]),
        len(theirs.keys() ^ ours.keys()),
    )


def report_of(rows: Sequence[Compared]) -> tuple[str, dict[str, Any]]:
    """Return the table with what differs below it, and the data for the line of JSON."""
    cells = []
    for row in rows:
        seconds = " and ".join(
            f"{row.seconds[side]:.0f}{' (ended)' if side in row.ended else ''}" for side in SIDES
        )
        same = "; ".join(f"{count} {outcome}" for outcome, count in sorted(row.same.items()))
        numbers = (len(row.differ), row.words, row.missing)
        cells.append((f"`{row.file}`", same or "none", *map(str, numbers), seconds))
    header = ("file", "the same", "differ", "other words", "on one side only", "seconds")
    differ = [f"- `{line}`" for row in rows for line in row.differ]
    text = "\n\n".join([table(header, cells), *(["\n".join(differ)] if differ else [])])
    return text, {"files": [asdict(row) for row in rows]}


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    made = parser(__doc__.partition("\n")[0])
    made.add_argument("source", type=Path, help="an unpacked source release of vLLM")
    made.add_argument("files", nargs="*", metavar="FILE", help="as tests/utils_/test_mem_utils.py")
    made.add_argument("--python", type=Path, default=Path(sys.executable))
    made.add_argument("--folder", type=Path, default=PROJECT / "build" / "vllm-helpers")
    made.add_argument("--limit", type=above_zero, default=600.0, help="seconds of a file and side")
    made.add_argument("--table", action="store_true", help="print what is kept, run nothing")
    chosen = made.parse_intermixed_args(arguments)
    for file in () if chosen.table else ("tests/utils.py", *chosen.files):
        if not (chosen.source / file).exists():
            made.error(f"{chosen.source} has no {file}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not kept yet, and show all of it; 1 if an outcome differs."""
    chosen = read_arguments(arguments)
    folder = chosen.folder.resolve()
    kept = folder / "results.jsonl"
    rows = [Compared(**row) for row in read_rows(kept)]
    left = [file for file in chosen.files if file not in {row.file for row in rows}]
    if left and not chosen.table:
        try:
            gone = prepare(chosen.source.resolve(), folder)
        except HelpersError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{gone} lines of helpers are replaced", flush=True)
        for file in left:
            rows.append(compare(folder, chosen.python.absolute(), file, chosen.limit))
            add_row(kept, asdict(rows[-1]))
            print(f"{file}: {len(rows[-1].differ)} differ", flush=True)
    text, data = report_of(rows)
    publish(
        "vllm_helpers", "Tests of vLLM with the lines for its helpers", text, data, save=chosen.save
    )
    return int(any(row.differ for row in rows))


if __name__ == "__main__":
    sys.exit(main())
