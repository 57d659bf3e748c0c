"""Tries all graph specimens on one backend and keeps a record of it.

From the root of the repository: ``python -m tests.specimens.graphs [--cuda] [--save]``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from results_file import parser, publish, table

_TESTS = Path(__file__).parents[2]
_FILES = {
    "software": _TESTS / "specimens" / "test_graph_specimens.py",
    "cuda": _TESTS / "gpu" / "test_graph_specimens_on_gpu.py",
}


class Record:
    """Collects from a session what each form and program did: a plugin for one run."""

    def __init__(self) -> None:
        self.spoke: dict[str, set[str]] = {}
        self.counts = {"caught": 0, "missed": 0, "passed": 0, "alarms": 0, "skipped": 0}
        self.wrong: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a buggy form, a fixed form or a correct program."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.partition("::")[2]
        buggy = name.startswith("test_the_buggy_form")
        if not buggy and not name.startswith(("test_the_fixed_form", "test_a_correct_program")):
            return
        if report.skipped:
            self.counts["skipped"] += 1
            return
        words = ("caught", "missed") if buggy else ("passed", "alarms")
        self.counts[words[not report.passed]] += 1
        if not report.passed:
            self.wrong.append(name)
        for key, value in report.user_properties:
            if key == "spoke":
                specimen, _, checks = str(value).partition(": ")
                self.spoke.setdefault(specimen, set()).update(checks.split())

    def text(self) -> str:
        """Return the table, the counts and what went wrong."""
        rows = [(name, " ".join(sorted(checks))) for name, checks in sorted(self.spoke.items())]
        told = ", ".join(f"{word} {count}" for word, count in self.counts.items())
        wrong = "".join(f"\n- {name}" for name in self.wrong)
        return f"{table(('specimen', 'checks that spoke'), rows)}\n\n{told}\n{wrong}"


def main() -> int:
    """Run the session, print the record, and keep it where that was asked for."""
    made = parser("All graph specimens on one backend.")
    made.add_argument("--cuda", action="store_true", help="real graphs, not the software's")
    options = made.parse_args()
    backend = "cuda" if options.cuda else "software"
    record, started = Record(), time.perf_counter()
    known = "ignore::pytest.PytestAssertRewriteWarning"  # this package is imported already
    args = ["-q", "-p", "no:cacheprovider", "-W", known, str(_FILES[backend])]
    status = pytest.main(args, plugins=[record])
    data = {
        **record.counts,
        "specimens": len(record.spoke),
        "seconds": round(time.perf_counter() - started, 1),
        "status": int(status),
    }
    topic = f"graph_specimens_{backend}"
    publish(topic, "Graph specimens", record.text(), data, save=options.save)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
