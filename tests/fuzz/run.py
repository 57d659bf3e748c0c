"""Looks for bytes that a reader chokes on, guided by coverage: ``python -m tests.fuzz.run``.

Each target runs in a process of its own for some seconds, or in several that share what they find
(``--processes``). What covers something new is kept in ``build/fuzz``; with ``--merge`` the small
ones of these are added to the corpora in the repository. An input that fails is written beside
them, named in the table, and the exit status is 1. Needs Atheris: ``make fuzz`` installs it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from arguments import at_least
from results_file import parser, publish, table

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
PROJECT = CORPUS.parents[2]
_FOUND = PROJECT / "build/fuzz"
_LONGEST = 1500  # bytes of an input
_LONGEST_KEPT = 200  # in the repository
_CHILD = """\
import sys, atheris
with atheris.instrument_imports(include=["pytest_cudafork"]):
    from tests.fuzz import targets
atheris.Setup([sys.argv[0], *sys.argv[2:]], targets.TARGETS[sys.argv[1]])
atheris.Fuzz()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the targets, one after the other."""
    made = parser("Coverage-guided fuzzing of what reads data.")
    made.add_argument("--seconds", type=at_least(1), default=60, help="for each target; default 60")
    made.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    made.add_argument("--processes", type=at_least(1), default=1, help="for each target; default 1")
    made.add_argument("--merge", action="store_true", help="add what is small to the corpora")
    options = made.parse_args(arguments)
    rows = []
    for name in options.targets:
        rows.append(run(name, options.seconds, options.processes))
        line = "{name:10} {runs:>9} runs in {processes} x {seconds} s  {failure}\n"
        sys.stdout.write(line.format(**rows[-1]))
        sys.stdout.flush()
        if options.merge and not rows[-1]["failure"]:
            merge(name)
    shown = [
        [str(row["name"]), f"{row['runs']:,}", str(row["seconds"]), str(row["failure"] or "none")]
        for row in rows
    ]
    text = table(("target", "runs", "s", "failed"), shown)
    title = "Readers of others' data, fuzzed"
    publish(*("fuzz", title, text, {"targets": rows}), save=options.save, packages=["atheris"])
    return int(any(row["failure"] for row in rows))


def run(name: str, seconds: int, processes: int) -> dict[str, object]:
    """Run one target for some seconds in each of some processes; return what became of it."""
    (_FOUND / name).mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ThreadPoolExecutor(processes) as pool:
        ended = list(pool.map(lambda number: _run_one(name, seconds, number), range(processes)))
    return {
        "name": name,
        "seconds": round(time.monotonic() - began),
        "processes": processes,
        "runs": sum(runs for runs, _ in ended),
        "failure": next((failure for _, failure in ended if failure), ""),
    }


def _run_one(name: str, seconds: int, number: int) -> tuple[int, str]:
    """Run one target in one process; return how many inputs it ran, and what failed."""
    done = _fuzz(
        name,
        *(f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-rss_limit_mb=4096"),
        *("-print_final_stats=1", f"-artifact_prefix={_FOUND}/failed-{name}-"),
        *(str(_FOUND / name), str(CORPUS / name)),
    )
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    wrote = re.search(r"Test unit written to (\S+)", done.stderr)
    log = _FOUND / f"{name}-{number}.log"
    log.write_text(done.stderr + done.stdout, encoding="utf-8")
    failed = "" if done.returncode == 0 else f"FAILED: {wrote[1] if wrote else log}"
    return int(runs[1]) if runs else 0, failed


def merge(name: str) -> None:
    """Add to the corpus in the repository what is small and covers more."""
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    folders = (str(CORPUS / name), str(_FOUND / name))
    _fuzz(name, "-merge=1", f"-max_len={_LONGEST_KEPT}", *folders)


def _fuzz(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _CHILD, name, *arguments],
        cwd=PROJECT,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
