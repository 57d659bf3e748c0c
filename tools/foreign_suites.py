"""Runs the test suites of other packages plainly and isolated, and compares each test's outcome.

The plain runs have an environment without the plugin. A test whose outcome differs between two of
them is left out of the comparison and counted. What is compared are the outcomes of setup, call and
teardown of each test, as pytest-reportlog writes them.

    python -m tools.foreign_suites                          all suites, in .foreign-suites/
    python -m tools.foreign_suites --only click attrs --runs fork spawn
    python -m tools.foreign_suites --prepare                only download and install
    python -m tools.foreign_suites --table                  what the runs so far have found
    python -m tools.foreign_suites --torch                  libraries that use torch, by the check

With ``--offline`` what ``--prepare`` left is used and nothing is downloaded; with ``--keep-plain``
the plain runs of an earlier call are compared with. Each result is kept as soon as it is there, and
with ``--resume`` what an earlier call has kept is not run again, its plain runs included: the same
call goes on where it was ended. ``--tests 200`` lets two hundred tests, evenly spread over a suite,
do for each isolated run, and ``--spawn-tests 50`` fifty for those by spawn.
Libraries that use torch (``--torch``) have a folder and environments of their own.
Tests that differ run once more, alone; which are equal then is said, for they may measure time.
Whose a difference is shows in runs without the plugin that run only when named: "pytest-forked" and
"random order".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from arguments import at_least
from results_file import parser, publish

from tools import torch_suites
from tools.kept_rows import add_row, read_rows
from tools.suite_archives import PROJECT, SUITES, Suite, SuiteError, prepare, python_of, unpack

PLAIN = ("plain1", "plain2")
"""The runs that the others are compared with."""
RUNS = {
    "off": ("-p", "no:cudafork"),
    "check": ("--cuda-fork-check",),
    "touch": ("--cuda-fork-check=touch",),
    "fork": ("--cuda-fork-isolate=fork",),
    "forkserver": ("--cuda-fork-isolate=forkserver",),
    "spawn": ("--cuda-fork-isolate=spawn",),
    "auto": ("--cuda-fork-isolate=auto",),
    "fork -n 2": ("--cuda-fork-isolate=fork", "-n", "2"),
    "forkserver -n 2": ("--cuda-fork-isolate=forkserver", "-n", "2"),
    "spawn -n 2": ("--cuda-fork-isolate=spawn", "-n", "2"),
}
WITHOUT_US = {
    "pytest-forked": ("--forked",),
    "random order": ("-p", "randomly", "-p", "no:forked"),
    "-n 2": ("-n", "2"),
}
"""Runs that tell whose a difference is; they have the environment of the plain ones."""
LIMIT = 7200.0
"""Seconds after which a run is ended."""

Outcomes = dict[str, str]
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
"""Node ids that hold the time of their collection are compared without it."""
_SECONDS = re.compile(r" in \d+\.\d+s.*")


@dataclass(frozen=True)
class Result:
    """What one run of a suite has found, beside the plain ones."""

    suite: str
    run: str
    tests: int
    seconds: float
    outcomes: dict[str, int]
    differences: list[str]
    summary: str = ""
    """The last line of pytest, without the time; "" where it is that of the plain run."""
    part: int = 0
    """How many tests of the suite were chosen; 0: all."""


def outcomes_of(report_log: Path) -> Outcomes:
    """Return for each node id the outcomes of its phases, as written by pytest-reportlog."""
    phases: dict[str, list[str]] = {}
    for line in report_log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("$report_type") == "CollectReport" and entry["outcome"] == "failed":
            phases.setdefault(f"collecting {entry['nodeid']}", []).append("failed")
        if entry.get("$report_type") not in ("TestReport", "SubtestReport"):
            continue
        outcome = entry["outcome"] + (" xfail" if "wasxfail" in entry else "")
        nodeid = _CLOCK.sub("HH:MM:SS", entry["nodeid"])
        phases.setdefault(nodeid, []).append(f"{entry['when']} {outcome}")
    return {nodeid: ", ".join(found) for nodeid, found in phases.items()}


def summary_of(log: Path) -> str:
    """Return the counts in pytest's last line: "3 passed, 1 warning"."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    found = [line for line in lines if _SECONDS.search(line)]
    return _SECONDS.sub("", found[-1]).strip("= ") if found else ""


def log_of(folder: Path, suite: Suite, name: str, kind: str) -> Path:
    """Return the file of a run that pytest writes to: "log" is its output, "jsonl" the reports."""
    return folder / "logs" / f"{suite.name}-{name.replace(' ', '_')}.{kind}"


def environment_of(suite: Suite) -> dict[str, str]:
    """Return the variables of a run: those of this process, less what changes pytest or us."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTEST_", "_CUDAFORK_", "CUDA_FORK_", "PYTHONPATH"))
    }
    return environment | dict(setting.split("=", 1) for setting in suite.environment)


def call_pytest(command: list[str], root: Path, environment: dict[str, str], log: Path) -> int:
    """Run pytest with its output in ``log`` and return its status.

    Raises:
        SuiteError: it was not done within ``LIMIT``; it and its process group are ended.

    """
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise SuiteError(f"{log.stem} was not done after {LIMIT:.0f} s: {log}") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_suite(
    folder: Path,
    suite: Suite,
    root: Path,
    name: str,
    tests: tuple[str, ...] = (),
    log_suffix: str = "",
) -> Outcomes:
    """Run a suite, or these tests of it, and return the outcomes; output goes to a log.

    Raises:
        SuiteError: pytest ended otherwise than with passed or failed tests.

    """
    logged = f"{name} {log_suffix}".strip()
    log, report_log = (log_of(folder, suite, logged, kind) for kind in ("log", "jsonl"))
    label = log.stem
    log.parent.mkdir(exist_ok=True)
    report_log.unlink(missing_ok=True)
    ours = name in RUNS
    quiet = ("-q", "-p", "no:cacheprovider")
    plain = () if ours or name in WITHOUT_US else ("-p", "no:forked")
    ordered = () if ours or name == "random order" else ("-p", "no:randomly")
    chosen = folder / "tmp" / f"{label}.args"
    chosen.parent.mkdir(exist_ok=True)
    chosen.write_text("\n".join(tests), encoding="utf-8")
    command = [
        str(python_of(folder, plugin=ours)),
        *("-m", "pytest", *quiet, *plain, *ordered),
        *(f"--report-log={report_log}", f"--basetemp={folder / 'tmp' / label}"),
        f"--rootdir={root}",
        *suite.arguments,
        *(RUNS | WITHOUT_US).get(name, ()),
        *((f"@{chosen}",) if tests else suite.paths),
    ]
    status = call_pytest(command, root, environment_of(suite), log)
    shutil.rmtree(folder / "tmp" / label, ignore_errors=True)
    if status not in (0, 1) or not report_log.exists():
        tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        raise SuiteError(f"{suite.name} by {name} ended with status {status}:\n{tail}")
    return outcomes_of(report_log)


def compare(plain: tuple[Outcomes, Outcomes], isolated: Outcomes) -> dict[str, str]:
    """Return a line for each test whose outcome in the isolated run is another one."""
    first, second = plain
    lines = {}
    for nodeid in sorted(first.keys() | isolated.keys()):
        before, after = first.get(nodeid, "not there"), isolated.get(nodeid, "not there")
        if before == second.get(nodeid, "not there") != after:
            lines[nodeid] = f"{nodeid}: {before} -> {after}"
    return lines


def spread(plain: tuple[Outcomes, Outcomes], most: int) -> tuple[str, ...]:
    """Return ``most`` ids, evenly spread over a suite; of those that can be given to pytest."""
    first, second = plain
    steady = [
        nodeid
        for nodeid, outcome in first.items()
        if second.get(nodeid) == outcome
        and not nodeid.startswith("collecting ")
        and "HH:MM:SS" not in nodeid
    ]
    step = max(len(steady) / most, 1.0)
    return tuple(steady[int(place * step)] for place in range(min(most, len(steady))))


def plain_runs(folder: Path, suite: Suite, root: Path, *, keep: bool) -> tuple[Outcomes, Outcomes]:
    """Run a suite twice without the plugin; with ``keep``, take what an earlier call has left.

    Raises:
        SuiteError: pytest ended otherwise than with passed or failed tests.

    """
    found = []
    for name in PLAIN:
        report_log = log_of(folder, suite, name, "jsonl")
        if keep and report_log.exists():
            found.append(outcomes_of(report_log))
        else:
            found.append(run_suite(folder, suite, root, name))
    return found[0], found[1]


def try_run(
    folder: Path,
    suite: Suite,
    plain: tuple[Outcomes, Outcomes],
    name: str,
    tests: tuple[str, ...] = (),
) -> Result:
    """Run a suite, or these tests of it, by one of the runs and compare it with the plain ones."""
    root = unpack(folder, suite)
    if tests:
        plain = ({t: plain[0][t] for t in tests}, {t: plain[1][t] for t in tests})
    started = time.monotonic()
    outcomes: Outcomes = {}
    summary = ""
    try:
        outcomes = run_suite(folder, suite, root, name, tests)
        seconds = time.monotonic() - started
        differences = once_more(folder, suite, plain, name, compare(plain, outcomes))
    except SuiteError as error:
        differences = [str(error)]
        seconds = time.monotonic() - started
    else:
        before, after = (
            summary_of(log_of(folder, suite, each, "log")) for each in (PLAIN[0], name)
        )
        summary = "" if before == after or tests else f"{before} -> {after}"
    return Result(
        suite.requirement,
        name,
        len(outcomes),
        round(seconds, 1),
        dict(Counter(outcomes.values())),
        differences,
        summary,
        len(tests),
    )


def once_more(
    folder: Path,
    suite: Suite,
    plain: tuple[Outcomes, Outcomes],
    name: str,
    differences: dict[str, str],
) -> list[str]:
    """Run the tests that differ again, alone, and return the lines with what came of it."""
    tests = tuple(nodeid for nodeid in differences if nodeid in spread(plain, len(plain[0])))
    if not tests:
        return list(differences.values())
    try:
        found = run_suite(folder, suite, unpack(folder, suite), name, tests, "again")
    except SuiteError as error:
        return [*differences.values(), f"run again: {error}"]
    lines = []
    for nodeid, line in differences.items():
        equal = nodeid in tests and found.get(nodeid) == plain[0][nodeid]
        lines.append(f"{line}; equal when run again" if equal else line)
    return lines


def tell(result: Result) -> str:
    """Return the line of a run, and its first differences below it."""
    shown = f"{len(result.differences)} differ" if result.differences else "equal"
    lines = [
        f"{result.suite:24} {result.tests:5} tests  {result.run:16} {shown}"
        f"  {result.seconds:.0f} s  {result.summary}",
        *(f"    {line}" for line in result.differences[:20]),
    ]
    return "\n".join(lines)


def table_of(results: list[dict[str, Any]]) -> str:
    """Return the latest result of each suite and run as a table, suites by rows."""
    latest = {(row["suite"], row["run"]): row for row in results}
    suites = sorted({suite for suite, _ in latest})
    names = [*PLAIN, *(name for name in RUNS | WITHOUT_US if any(run == name for _, run in latest))]
    shown = [name for name in names if name != PLAIN[1]]
    lines = [
        f"| suite | {' | '.join('tests' if name in PLAIN else name for name in shown)} |",
        f"| --- | ---: |{' --- |' * (len(shown) - 1)}",
    ]
    for suite in suites:
        tests = latest.get((suite, PLAIN[0]), {"tests": 0})["tests"]
        cells = [str(tests)]
        for name in shown[1:]:
            row = latest.get((suite, name))
            if row is None:
                cells.append("not run")
                continue
            part = "" if row["tests"] >= tests else f" ({row['tests']})"
            cells.append(f"{len(row['differences']) or 'equal'}{part}")
        lines.append(f"| {suite.replace('==', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def try_suite(folder: Path, suite: Suite, chosen: argparse.Namespace) -> list[Result]:
    """Run a suite twice plainly and once by each of the runs that were asked for.

    Raises:
        SuiteError: the suite cannot be had, or its plain runs ended otherwise than they should.

    """
    kept = folder / "results.jsonl"
    root = unpack(folder, suite)
    rows = read_rows(kept) if chosen.resume else []
    before = [Result(**row) for row in rows if row["suite"] == suite.requirement]
    known = any(row.run == PLAIN[0] for row in before)
    plain = plain_runs(folder, suite, root, keep=chosen.keep_plain or known)
    first, second = plain
    flaky = sum(first.get(nodeid) != second.get(nodeid) for nodeid in first.keys() | second)
    counts = dict(Counter(first.values()))
    summary = f"{flaky} differ between plain runs" if flaky else ""
    results = [Result(suite.requirement, PLAIN[0], len(first), 0.0, counts, [], summary)]
    if not known:
        add_row(kept, asdict(results[0]))
    for name in chosen.runs:
        part = chosen.tests if name in RUNS and "isolate" in RUNS[name][0] else 0
        part = chosen.spawn_tests or part if name.startswith("spawn") else part
        tests = spread(plain, part) if part and part < len(first) else ()
        # A run that could not be made has no tests: it is made again.
        done = [r for r in before if r.run == name and r.part == len(tests) and r.tests]
        results.append(done[-1] if done else try_run(folder, suite, plain, name, tests))
        if not done:
            add_row(kept, asdict(results[-1]))
        print(tell(results[-1]), flush=True)
    return results


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    made = parser(__doc__.partition("\n")[0])
    made.add_argument("--torch", action="store_true", help="those of libraries that use torch")
    made.add_argument("--folder", type=Path, help="default: .foreign-suites in the checkout")
    made.add_argument("--only", nargs="+", metavar="NAME", help="these suites")
    made.add_argument("--runs", nargs="+", choices=[*RUNS, *WITHOUT_US])
    made.add_argument("--tests", type=at_least(0), default=0, metavar="N", help="0: all")
    made.add_argument(
        "--spawn-tests", type=at_least(0), default=0, metavar="N", help="0: as --tests"
    )
    made.add_argument("--keep-plain", action="store_true", help="take earlier plain runs")
    made.add_argument("--resume", action="store_true", help="go on where the last call ended")
    made.add_argument("--prepare", action="store_true", help="download and install, run nothing")
    made.add_argument("--offline", action="store_true", help="download and install nothing")
    made.add_argument("--table", action="store_true", help="print the results kept, run nothing")
    chosen = made.parse_args(arguments)
    chosen.suites = torch_suites.SUITES if chosen.torch else SUITES
    chosen.folder = chosen.folder or PROJECT / ".foreign-suites" / ("torch" if chosen.torch else "")
    chosen.runs = chosen.runs or (["check"] if chosen.torch else list(RUNS))
    names = {suite.name for suite in chosen.suites}
    if unknown := set(chosen.only or ()) - names:
        made.error(f"no suite named {', '.join(sorted(unknown))}; there are {sorted(names)}")
    return chosen


def main(arguments: list[str]) -> int:
    """Prepare, run and compare; keep the results, print them and a last line of JSON."""
    chosen = read_arguments(arguments)
    folder = chosen.folder.resolve()
    if chosen.table:
        rows = read_rows(folder / "results.jsonl")
        print(table_of(rows) if rows else f"no results are kept in {folder}")
        return 0 if rows else 1
    suites = tuple(each for each in chosen.suites if not chosen.only or each.name in chosen.only)
    if chosen.torch and not chosen.offline:
        prepare(folder, suites, torch_suites.REQUIREMENTS, torch_suites.HELD)
    elif not chosen.offline:
        prepare(folder, suites)
    if chosen.prepare:
        return 0
    results: list[Result] = []
    differences: list[str] = []
    for suite in suites:
        try:
            found = try_suite(folder, suite, chosen)
        except SuiteError as error:
            print(error, flush=True)
            differences.append(str(error))
            continue
        results += found
        differences += [f"{r.suite} by {r.run}: {line}" for r in found for line in r.differences]
    total = sum(result.tests for result in results if result.run == PLAIN[0])
    tried = len({result.suite for result in results})
    print(f"{tried} suites, {total} tests, {len(differences)} differences")
    rows = [asdict(result) for result in results]
    data = {"rows": rows, "differences": differences}
    title = "Suites of other packages, plainly and by the plugin"
    topic = "library_suites" if chosen.torch else "foreign_suites"
    publish(topic, title, table_of(rows), data, save=chosen.save)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
