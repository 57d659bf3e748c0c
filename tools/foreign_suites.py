"""Runs the test suites of other packages plainly and isolated, and compares each test's outcome.

The suites come from the packages' source archives and run against the installed releases, in an
environment without torch. A test whose outcome differs between two plain runs is left out of the
comparison and counted. What is compared are the outcomes of setup, call and teardown of each test,
as pytest-reportlog writes them.

    python tools/foreign_suites.py                          all suites, in .foreign-suites/
    python tools/foreign_suites.py --only click attrs --runs fork spawn
    python tools/foreign_suites.py --prepare                only download and install

With ``--offline`` what ``--prepare`` left is used and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYTEST = "9.1.1"
# What the suites import beside the package itself, and what runs and compares them.
REQUIREMENTS = (
    f"pytest=={PYTEST}",
    "pytest-xdist",
    "pytest-reportlog",
    "asgiref",
    "chardet",
    "cloudpickle",
    "ephemeral-port-reserve",
    "freezegun",
    "greenlet",
    "hypothesis",
    "numpy",
    "pretend",
    "pytest-timeout",
    "pytest-trio",
    "python-dotenv",
    "pyyaml",
    "simplejson",
    "tornado",
    "trio",
    "trustme",
    "typeguard",
    "uvicorn",
    "watchdog",
)
RUNS = {
    "fork": ("--cuda-fork-isolate=fork",),
    "forkserver": ("--cuda-fork-isolate=forkserver",),
    "spawn": ("--cuda-fork-isolate=spawn",),
    "fork -n 2": ("--cuda-fork-isolate=fork", "-n", "2"),
    "forkserver -n 2": ("--cuda-fork-isolate=forkserver", "-n", "2"),
    "spawn -n 4": ("--cuda-fork-isolate=spawn", "-n", "4"),
}

Outcomes = dict[str, str]
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
"""Node ids that hold the time of their collection are compared without it."""


class SuiteError(Exception):
    """A suite cannot be had or run; the text says why."""


@dataclass(frozen=True)
class Suite:
    """The tests of one release: ``paths`` below its folder, what pytest is given, variables set."""

    name: str
    version: str
    paths: tuple[str, ...] = ("tests",)
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """The release as pip takes it."""
        return f"{self.name}=={self.version}"


SUITES = (
    Suite("attrs", "26.1.0"),
    Suite("blinker", "1.9.0"),
    Suite("boltons", "26.2.0"),
    Suite("click", "8.5.1"),
    Suite("einops", "0.8.2", ("einops/tests",), environment=("EINOPS_TEST_BACKENDS=numpy",)),
    # Imports a name of pytest that is gone.
    Suite("flask", "3.1.3", arguments=("--ignore=tests/test_cli.py",)),
    Suite("h11", "0.16.0", ("h11/tests",)),
    Suite("httpx", "0.28.1"),
    Suite("itsdangerous", "2.2.0"),
    Suite("jinja2", "3.1.6"),
    Suite("marshmallow", "4.4.0"),
    Suite("more-itertools", "11.2.1"),
    # The rest has 60,000 cases of the same few tests.
    Suite("packaging", "26.3", ("tests/test_tags.py", "tests/test_requirements.py")),
    Suite("pluggy", "1.7.0", ("testing",)),
    Suite("sniffio", "1.3.1", ("sniffio/_tests",)),
    Suite("tenacity", "9.2.1"),
    Suite("tomlkit", "0.15.2"),
    Suite("werkzeug", "3.1.9"),
)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        SuiteError: it did not end with status 0.

    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        line = " ".join(str(part) for part in command)
        raise SuiteError(f"{line}\nended with status {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def prepare(folder: Path, suites: tuple[Suite, ...]) -> None:
    """Download the archives and make the environment, as far as they are not there."""
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True, symlinks=True)
    quiet = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    run(
        python,
        *quiet,
        "install",
        PROJECT,
        *REQUIREMENTS,
        *(suite.requirement for suite in suites),
    )
    for suite in suites:
        if not find_archive(archives, suite):
            options = ("--no-binary", ":all:", "--no-deps", "--dest", archives)
            run(python, *quiet, "download", *options, suite.requirement)


def find_archive(archives: Path, suite: Suite) -> Path | None:
    """Return the source archive of a suite, if it was downloaded."""
    names = {
        f"{name}-{suite.version}.tar.gz" for name in (suite.name, suite.name.replace("-", "_"))
    }
    return next((path for path in archives.glob("*.tar.gz") if path.name in names), None)


def unpack(folder: Path, suite: Suite) -> Path:
    """Unpack a suite's archive afresh and return its root, without the package's own sources.

    The tests import the installed release: a ``src`` folder is removed, other layouts keep the
    package where its tests lie inside it.

    Raises:
        SuiteError: the archive was not downloaded, or lacks the tests.

    """
    archive = find_archive(folder / "archives", suite)
    if archive is None:
        raise SuiteError(f"no source archive of {suite.requirement} in {folder / 'archives'}")
    target = folder / "suites" / suite.name
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")
    (root,) = target.iterdir()
    shutil.rmtree(root / "src", ignore_errors=True)
    for path in suite.paths:
        if not (root / path).exists():
            raise SuiteError(f"{archive.name} has no {path}")
    return root


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


def run_suite(
    folder: Path, suite: Suite, root: Path, name: str, options: tuple[str, ...]
) -> Outcomes:
    """Run a suite once, and return its outcomes; all of what pytest printed goes to a log.

    Raises:
        SuiteError: pytest ended otherwise than with passed or failed tests.

    """
    label = f"{suite.name}-{name.replace(' ', '')}"
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    report_log = logs / f"{label}.jsonl"
    report_log.unlink(missing_ok=True)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTEST_", "_CUDAFORK_", "PYTHONPATH"))
    }
    environment |= dict(setting.split("=", 1) for setting in suite.environment)
    command = [
        str(folder / "venv" / "bin" / "python"),
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
        *(f"--report-log={report_log}", f"--basetemp={folder / 'tmp' / label}"),
        *suite.arguments,
        *options,
        *suite.paths,
    ]
    (folder / "tmp").mkdir(exist_ok=True)
    with open(logs / f"{label}.log", "w", encoding="utf-8") as log:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    shutil.rmtree(folder / "tmp" / label, ignore_errors=True)
    if done.returncode not in (0, 1) or not report_log.exists():
        tail = (logs / f"{label}.log").read_text(encoding="utf-8", errors="replace")[-1500:]
        raise SuiteError(f"{suite.name} by {name} ended with status {done.returncode}:\n{tail}")
    return outcomes_of(report_log)


def compare(plain: tuple[Outcomes, Outcomes], isolated: Outcomes) -> list[str]:
    """Return a line for each test whose outcome in the isolated run is another one."""
    first, second = plain
    lines = []
    for nodeid in sorted(first.keys() | isolated.keys()):
        if first.get(nodeid) != second.get(nodeid):
            continue
        if first.get(nodeid) != isolated.get(nodeid):
            before, after = first.get(nodeid, "not there"), isolated.get(nodeid, "not there")
            lines.append(f"{nodeid}: {before} -> {after}")
    return lines


def try_suite(folder: Path, suite: Suite, runs: list[str]) -> tuple[dict[str, object], list[str]]:
    """Run a suite twice plainly and once by each of ``runs``; return a row and the differences.

    Raises:
        SuiteError: the suite cannot be had, or its plain runs ended otherwise than they should.

    """
    root = unpack(folder, suite)
    first, second = (run_suite(folder, suite, root, f"plain{i}", ()) for i in (1, 2))
    flaky = sum(first.get(nodeid) != second.get(nodeid) for nodeid in first.keys() | second)
    row: dict[str, object] = {"suite": suite.requirement, "tests": len(first), "flaky": flaky}
    row["plain"] = dict(Counter(first.values()))
    differences = []
    for name in runs:
        started = time.monotonic()
        try:
            found = compare((first, second), run_suite(folder, suite, root, name, RUNS[name]))
        except SuiteError as error:
            found = [str(error)]
        row[name] = len(found)
        differences += [f"{suite.name} by {name}: {line}" for line in found]
        shown = f"{len(found)} differ" if found else "equal"
        seconds = time.monotonic() - started
        print(f"{suite.requirement:24} {len(first):5} tests  {name:16} {shown}  {seconds:.0f} s")
        print("".join(f"    {line}\n" for line in found[:20]), end="", flush=True)
    return row, differences


def main(arguments: list[str]) -> int:
    """Prepare, run and compare; print a table, the differences, and a last line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=PROJECT / ".foreign-suites")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these suites")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--prepare", action="store_true", help="download and install, run nothing")
    parser.add_argument("--offline", action="store_true", help="download and install nothing")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    suites = tuple(suite for suite in SUITES if not chosen.only or suite.name in chosen.only)
    if not chosen.offline:
        prepare(folder, suites)
    if chosen.prepare:
        return 0
    rows: list[dict[str, object]] = []
    differences: list[str] = []
    for suite in suites:
        try:
            row, found = try_suite(folder, suite, chosen.runs)
        except SuiteError as error:
            print(error, flush=True)
            differences.append(str(error))
        else:
            rows.append(row)
            differences += found
    total = sum(int(str(row["tests"])) for row in rows)
    print(f"{len(rows)} suites, {total} tests, {len(differences)} differences")
    print(json.dumps({"topic": "foreign_suites", "rows": rows, "differences": differences}))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
