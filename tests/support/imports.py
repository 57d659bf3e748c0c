"""What the tests of the import audit share: packages on disk, sessions, and what these say."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import textwrap
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_cudafork import ImportRecord, audit
from tests.support.marked_processes import marked_processes
from tests.support.sessions import TIME_LIMIT, run_session

TOUCH = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
"""The cheapest touch, in one line."""

SHOP = {
    "__init__": "",
    "clean": "VALUE = 1",
    "flash": f"class Kernel:\n    {TOUCH}",
    "layers": "from shop import flash",
    "models/__init__": "",
    "models/big": "from shop.layers import flash",
    "models/small": "from shop import clean",
    "broken": "import no_such_library",
    "late": f"{TOUCH}\nraise ValueError('no such backend')",
    "hook": "import os\nos._exit(7)",
}
"""A package with a module of most verdicts."""

SHOP_VERDICTS = {
    "shop": "clean",
    "shop.broken": "not importable",
    "shop.clean": "clean",
    "shop.flash": "touches",
    "shop.hook": "crashed",
    "shop.late": "touches, then fails to import",
    "shop.layers": "touches",
    "shop.models": "clean",
    "shop.models.big": "touches",
    "shop.models.small": "clean",
}

XDIST = ("-p", "xdist.plugin")
needs_xdist = pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"
)

_CONFTEST = """
import json, sys

class Reports:
    def pytest_runtest_logreport(self, report):
        carried = getattr(report, "_cudafork_import", None) or {}
        told = {
            "nodeid": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "xfail": hasattr(report, "wasxfail"),
            "text": report.longreprtext,
            "duration": report.duration,
            "record": carried.get("record"),
        }
        with open("reports.jsonl", "a") as file:
            file.write(json.dumps(told) + "\\n")

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reports())

def pytest_sessionfinish(session):
    with open("imported", "a") as file:
        file.write("\\n".join(sys.modules) + "\\n")
"""


def write_package(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """Write a package; keys are paths below it without ``.py``."""
    for path, text in files.items():
        file = folder / name / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text) + "\n", encoding="utf-8")
    return folder / name


class Session(NamedTuple):
    """A pytest session that is over, and the reports of its tests."""

    result: pytest.RunResult
    reports: list[dict[str, Any]]
    imported: set[str]

    @property
    def out(self) -> str:
        """What it printed."""
        return self.result.stdout.str()

    @property
    def outcomes(self) -> dict[str, str]:
        """What became of each test, in one word."""
        found: dict[str, str] = {}
        for report in self.reports:
            if report["when"] == "call" or report["outcome"] != "passed":
                outcome = "xfailed" if report["xfail"] else report["outcome"]
                if report["when"] != "call" and outcome == "failed":
                    outcome = "error"
                assert report["nodeid"] not in found, f"two outcomes of {report['nodeid']}"
                found[report["nodeid"]] = outcome
        return found

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records that the reports carry."""
        return [report["record"] for report in self.reports if report["record"]]

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each module."""
        return {record["module"]: record["verdict"] for record in self.records}

    def text(self, nodeid: str) -> str:
        """Return what the session tells about one test."""
        reports = [report for report in self.reports if report["nodeid"] == nodeid]
        texts = [report["text"] for report in reports if report["outcome"] != "passed"]
        assert len(texts) == 1, (nodeid, texts)
        return str(texts[0])

    def section(self) -> list[str]:
        """Return the lines of the section "imports"."""
        lines = self.out.splitlines()
        start = next(i for i, line in enumerate(lines) if line.strip("= ") == "imports")
        end = next(i for i, line in enumerate(lines) if i > start and line.startswith("==="))
        return lines[start + 1 : end]


def run_audit(
    pytester: pytest.Pytester,
    *args: str | Path,
    env: Mapping[str, str] | None = None,
    conftest: str = "",
) -> Session:
    """Run a session under the phantom with a GPU; nothing of it may be left in the end."""
    mark = uuid.uuid4().hex
    pytester.makeconftest(_CONFTEST + conftest)
    temporary = pytester.path / "temporary"
    temporary.mkdir(exist_ok=True)
    for name in ("reports.jsonl", "imported"):
        (pytester.path / name).unlink(missing_ok=True)
    variables = {
        "PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90",
        "TMPDIR": str(temporary),
        "IMPORTS_TEST": mark,
        **(env or {}),
    }
    result = run_session(pytester, *args, env=variables)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert_gone(mark)
    left = [path.name for path in temporary.iterdir() if not path.match("pytest-of-*")]
    assert left == []
    return Session(result, reports_of(pytester.path), imported_in(pytester.path))


def reports_of(folder: Path) -> list[dict[str, Any]]:
    """Return what the conftest has written of the tests."""
    file = folder / "reports.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def imported_in(folder: Path) -> set[str]:
    """Return which modules were imported in the session's own processes."""
    file = folder / "imported"
    return set(file.read_text().split("\n")) if file.exists() else set()


def assert_gone(mark: str, but: str = "") -> None:
    """Check that no process is left that was started with a mark in its environment.

    Those whose command begins with ``but`` are ended.
    """
    deadline = time.monotonic() + 60
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        for pid in [pid for pid, command in left.items() if but and command.startswith(but)]:
            with contextlib.suppress(ProcessLookupError):  # it has ended since it was looked at
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    assert left == {}


def audit_here(package: str, folder: Path, **options: Any) -> dict[str, ImportRecord]:
    """Audit a package in a folder from this process, under the phantom with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        records = audit(package, **{"device": "phantom:sm_90", **options})
    names = [record.module for record in records]
    assert len(set(names)) == len(names) or options.get("without"), "two verdicts on one module"
    return {record.module: record for record in records}


def verdicts_of(records: Mapping[str, ImportRecord]) -> dict[str, str]:
    """Return the verdict on each module in words."""
    return {name: record.verdict.value for name, record in records.items()}


def command_line(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run ``python -m pytest_cudafork imports``."""
    import sys

    options: Sequence[str] = () if "--device" in args else ("--device", "phantom:sm_90")
    return pytester.run(
        sys.executable, "-m", "pytest_cudafork", "imports", *args, *options, timeout=TIME_LIMIT
    )
