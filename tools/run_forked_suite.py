"""Runs pytest-forked's own tests against this plugin's ``--forked``.

The tests are downloaded, not kept here; in them only the two names are changed by which
pytest-forked calls itself. The table has one row a test, those that pytest-forked expects to fail
included, and one column for each pytest.

    python tools/run_forked_suite.py                          in this environment
    python tools/run_forked_suite.py --pytest 9.1.1 9.2.0     each in an environment of its own
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
RELEASE = "1.7.5"
# What the tests look for in the output and only pytest-forked can print.
NAMES = (
    ('"plugins:* forked*"', '"plugins:* cudafork*"'),
    ("pytest-forked reason: ", "pytest-cudafork reason: "),
)
SUITE = ("test_boxed.py", "test_xfail_behavior.py")
_FIND = "import importlib.util as u; print(u.find_spec('pytest_forked') is None)"
_VERSION = "import pytest; print(pytest.__version__)"

Outcomes = dict[str, str]


class SuiteError(Exception):
    """The tests cannot be had or run; the text says why."""


def run(*command: str | Path, cwd: Path | None = None, ok: tuple[int, ...] = (0,)) -> str:
    """Run a command and return what it printed.

    Raises:
        SuiteError: it ended with another status than those in ``ok``.

    """
    mine = ("PYTEST_", "_CUDAFORK_", "PYTHONPATH")
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith(mine)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in ok:
        line = " ".join(str(part) for part in command)
        raise SuiteError(f"{line}\nended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def fetch(folder: Path) -> Path:
    """Download the release's sources, change the names, and return the folder of the tests."""
    options = ("--no-binary", ":all:", "--no-deps", "--quiet", "--dest", folder)
    run(sys.executable, "-m", "pip", "download", *options, f"pytest-forked=={RELEASE}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        wanted = [member for member in file.getmembers() if "/testing/" in member.name]
        for member in wanted:
            if member.isfile() and member.name.endswith(".py"):
                data = file.extractfile(member)
                assert data is not None, "a plain file has contents"
                _adapt(folder / Path(member.name).name, data.read().decode("utf-8"))
    missing = [name for name in SUITE if not (folder / name).exists()]
    if missing:
        raise SuiteError(f"{archive.name} has no {', '.join(missing)}")
    return folder


def _adapt(path: Path, text: str) -> None:
    for theirs, ours in NAMES:
        text = text.replace(theirs, ours)
    path.write_text(text, encoding="utf-8")


def environment(folder: Path, release: str) -> str:
    """Make an environment with this plugin and one release of pytest; return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", PROJECT, f"pytest=={release}")
    return str(python)


def outcomes(python: str, tests: Path) -> Outcomes:
    """Run the tests; the marks that expect a failure do not count.

    Raises:
        SuiteError: pytest-forked is installed there, or the session broke.

    """
    if run(python, "-c", _FIND).strip() != "True":
        raise SuiteError(f"pytest-forked is installed beside {python}: the tests would find it")
    report = tests / "report.xml"
    options = ("--runxfail", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    text = run(python, "-m", "pytest", *options, f"--rootdir={tests}", *SUITE, cwd=tests, ok=(0, 1))
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{str(case.get('classname')).rpartition('.')[2]}.py::{case.get('name')}"
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[name] = (
            {"failure": "failed", "error": "failed"}.get(bad[0], bad[0]) if bad else "passed"
        )
    if not found:
        raise SuiteError(f"no test was run:\n{text}")
    if "failed" in found.values():
        sys.stderr.write(text)
    return found


def expected_to_fail(tests: Path, names: list[str]) -> set[str]:
    """Return the tests that pytest-forked itself expects to fail, by the marks in its files."""
    text = "".join((tests / name).read_text(encoding="utf-8") for name in SUITE)
    marked = {line.split('"')[1] for line in text.splitlines() if "marks=pytest.mark.xfail" in line}
    return {name for name in names if name.partition("[")[2].rstrip("]") in marked}


def table(tests: Path, columns: dict[str, Outcomes]) -> str:
    """Return the table as Markdown."""
    names = list(next(iter(columns.values())))
    marked = expected_to_fail(tests, names)
    lines = [f"| test of pytest-forked {RELEASE} | there | {' | '.join(columns)} |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for name in names:
        there = "xfail" if name in marked else "passes"
        cells = " | ".join(found.get(name, "-") for found in columns.values())
        lines.append(f"| `{name}` | {there} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    """Fetch, run and print; 1 if a test failed, 2 if there was nothing to run."""
    parser = argparse.ArgumentParser(description="Run pytest-forked's own tests against --forked.")
    parser.add_argument("--pytest", nargs="*", default=[], metavar="RELEASE", help="e.g. 9.1.1")
    releases = parser.parse_args().pytest
    with tempfile.TemporaryDirectory(prefix="forked-suite-") as scratch:
        try:
            (folder := Path(scratch, "suite")).mkdir()
            tests = fetch(folder)
            columns: dict[str, Outcomes] = {}
            for release in releases:
                python = environment(Path(scratch, f"pytest-{release}"), release)
                columns[f"pytest {release}"] = outcomes(python, tests)
            if not releases:
                release = run(sys.executable, "-c", _VERSION).strip()
                columns[f"pytest {release}"] = outcomes(sys.executable, tests)
        except SuiteError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        sys.stdout.write(f"{table(tests, columns)}\n")
    failed = sum(outcome == "failed" for found in columns.values() for outcome in found.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
