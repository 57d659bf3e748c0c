"""Runs parts of the test suite again and again beside busy processes, and keeps every failure.

    python -m tools.repeat_under_load tests/sessions/isolate tests/unit/process
    python -m tools.repeat_under_load --times 5 --busy 4 tests/sessions/hosts -- -k socket

A test that fails once in twenty runs has a race, in itself or in what it tests. Each part is run
``--times`` times, all parts in turns, from a copy of the checkout that is made when the folder is
new: editing goes on beside it. A run that is done is kept in ``runs.jsonl`` with its failures, its
output in ``logs/`` where anything failed; the same call again goes on where the last one ended. A
test that hangs has the stacks of its threads written, and the run ends at its limit.

Prints a line for each run, a table of the parts and a last line of JSON; returns 1 if
anything failed, 2 if a part cannot be run at all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from arguments import above_zero, at_least

from tools.checkout import PROJECT, copy_checkout, make_interpreter
from tools.kept_rows import add_row, read_rows

SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"
"""A busy process; it ends with the one that started it, however that ended."""
PASSED = 0
CANNOT_BE_RUN = (4, 5)
"""pytest's statuses for wrong arguments and for no tests."""


class PartError(Exception):
    """A part cannot be run: pytest was called wrongly, or found no test."""


@dataclass(frozen=True)
class Failure:
    """A test that failed in one run, or the run itself."""

    test: str
    text: str


@dataclass(frozen=True)
class Run:
    """One run of a part."""

    part: str
    number: int
    revision: str
    tests: int
    seconds: float
    load: float
    """How many processes wanted a core when it ended, over the last minute."""
    failures: list[Failure]


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep ``count`` processes busy meanwhile."""
    command = [sys.executable, "-I", "-S", "-c", SPIN, str(os.getpid())]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def revision_of(project: Path) -> str:
    """Return the commit of a checkout; with "+" behind it where files differ from it."""
    git = ["git", "-C", str(project)]
    commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    changed = subprocess.check_output([*git, "status", "--porcelain"], text=True).strip()
    return commit + ("+" if changed else "")


def prepare(folder: Path, project: Path) -> tuple[Path, str]:
    """Return the interpreter of the folder's copy of the checkout, and the copy's revision."""
    copy, told = folder / "checkout", folder / "revision"
    if not told.exists():
        copy.mkdir(parents=True, exist_ok=True)
        copy_checkout(copy, project)
        make_interpreter(copy)
        told.write_text(revision_of(project), encoding="utf-8")
    return copy / ".venv" / "bin" / "python", told.read_text(encoding="utf-8")


def failures_in(junit: Path) -> tuple[int, list[Failure]]:
    """Return how many tests a JUnit file has, and those that failed."""
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    failures = [
        Failure(f"{case.get('classname')}::{case.get('name')}", found.text or "")
        for case in cases
        for found in case
        if found.tag in ("failure", "error")
    ]
    return len(cases), failures


def call_pytest(
    command: list[str],
    root: Path,
    log: Path,
    limit: float,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Run pytest with its output in ``log``; return its status, None where the limit ended it."""
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
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_part(
    folder: Path, python: Path, part: str, number: int, chosen: argparse.Namespace, revision: str
) -> Run:
    """Run a part once and return what came of it; its output stays if anything failed.

    Raises:
        PartError: pytest was called wrongly, or found no test.

    """
    label = f"{part.strip('/').replace('/', '-')}-{number}"
    log, junit = folder / "logs" / f"{label}.log", folder / f"{label}.xml"
    log.parent.mkdir(exist_ok=True)
    junit.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    if chosen.workers > 1:
        command += ["-n", str(chosen.workers), "--dist", "worksteal"]
    command += ["-o", f"faulthandler_timeout={chosen.limit / 4}", *chosen.pytest, part]
    started = time.monotonic()
    status = call_pytest(command, folder / "checkout", log, chosen.limit)
    seconds = time.monotonic() - started
    output = log.read_text(encoding="utf-8", errors="replace")
    tests, failures = failures_in(junit) if junit.exists() else (0, [])
    if status in CANNOT_BE_RUN:
        raise PartError(f"{part}: pytest ended with status {status}:\n{output[-2000:]}")
    if status != PASSED and not failures:
        ended = "was ended at its limit" if status is None else f"ended with status {status}"
        failures = [Failure(f"{part} {ended}", output[-6000:])]
    junit.unlink(missing_ok=True)
    if not failures:
        log.unlink()
    return Run(part, number, revision, tests, round(seconds, 1), os.getloadavg()[0], failures)


def read_runs(kept: Path) -> list[Run]:
    """Return the runs that earlier calls have kept."""
    return [
        Run(**row | {"failures": [Failure(**each) for each in row["failures"]]})
        for row in read_rows(kept)
    ]


def table_of(parts: list[str], runs: list[Run]) -> str:
    """Return the table of the parts, and below it each test that failed, with how often."""
    lines = ["| part | runs | tests | failed runs |", "| --- | ---: | ---: | ---: |"]
    for part in parts:
        own = [run for run in runs if run.part == part]
        tests = max((run.tests for run in own), default=0)
        failed = sum(bool(run.failures) for run in own)
        lines.append(f"| {part} | {len(own)} | {tests} | {failed} |")
    counts = Counter(failure.test for run in runs for failure in run.failures)
    lines += [f"{count} times: {test}" for test, count in counts.most_common()]
    return "\n".join(lines)


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; what follows ``--`` goes to pytest."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", metavar="PATH", help="a folder or file of tests")
    parser.add_argument("--times", type=at_least(1), default=20, metavar="N")
    parser.add_argument(
        "--busy", type=at_least(0), default=2, metavar="K", help="busy processes beside it"
    )
    parser.add_argument(
        "--workers", type=at_least(0), default=2, metavar="N", help="of pytest-xdist"
    )
    parser.add_argument("--limit", type=above_zero, default=1800.0, metavar="S", help="of one run")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build" / "repeated")
    chosen = parser.parse_args(arguments[:end])
    chosen.pytest = arguments[end + 1 :]
    if missing := [part for part in chosen.parts if not (PROJECT / part.split("::")[0]).exists()]:
        parser.error(f"there is no {', '.join(missing)} in the checkout")
    return chosen


def tell(run: Run) -> str:
    """Return the line of a run, and its failures below it."""
    shown = f"{len(run.failures)} failed" if run.failures else "passed"
    lines = [f"{run.part} {run.number}: {run.tests} tests {shown} in {run.seconds:.0f} s"]
    return "\n    ".join([*lines, *(failure.test for failure in run.failures)])


def main(arguments: list[str]) -> int:
    """Run all parts in turns as often as is still to do; print what came of all runs."""
    chosen = read_arguments(arguments)
    folder = chosen.folder.resolve()
    python, revision = prepare(folder, PROJECT)
    kept = folder / "runs.jsonl"
    runs = read_runs(kept)
    done = {(run.part, run.number) for run in runs}
    turns = [(part, number) for number in range(1, chosen.times + 1) for part in chosen.parts]
    with busy_processes(chosen.busy):
        for part, number in turns:
            if (part, number) in done:
                continue
            try:
                run = run_part(folder, python, part, number, chosen, revision)
            except PartError as error:
                print(error, file=sys.stderr)
                return 2
            runs.append(run)
            add_row(kept, asdict(run))
            print(tell(run), flush=True)
    own = [run for run in runs if run.part in chosen.parts and run.number <= chosen.times]
    print(table_of(chosen.parts, own))
    failed = any(run.failures for run in own)
    print(json.dumps({"topic": "repeat_under_load", "rows": [asdict(run) for run in own]}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
