"""A session with the audit's hooks in this process, where their lines can be counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.imports.plugin import ImportAudit
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.options import Settings
from tests.support.imports import write_package

TINY = {
    "__init__": "",
    "cold": "",
    "hot": "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)",
    "broken": "import no_such_library",
}
"""A package ``tiny`` with a module of each outcome."""


class Ran(NamedTuple):
    """What came of a session: its exit status, its output, the outcome of each test."""

    status: int
    out: str
    outcomes: dict[str, str]
    audit: ImportAudit | None


class AuditWasAsked:
    """Stands for the options, which the plugin's main module reads: an audit was asked for."""

    def __init__(self, imports: ImportSettings) -> None:
        self.settings = Settings(device=Device(DeviceKind.PHANTOM, "sm_90"), imports=imports)
        self.audit: ImportAudit | None = None
        self.reports: list[pytest.TestReport] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the audit's hooks as the main plugin does."""
        config.stash[SESSION] = cast("Any", SimpleNamespace(settings=self.settings))
        self.audit = ImportAudit(config)
        config.pluginmanager.register(self.audit)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the reports."""
        self.reports.append(report)

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each test; "error" where its set-up failed."""
        found = {}
        for report in self.reports:
            if report.when == "call" or report.outcome != "passed":
                failed = "error" if report.when != "call" else "failed"
                outcome = failed if report.failed else report.outcome
                found[report.nodeid] = "xfailed" if hasattr(report, "wasxfail") else outcome
        return found


def run_here(pytester: pytest.Pytester, imports: ImportSettings, *args: str | Path) -> Ran:
    """Run a session with an audit in this process; the package ``tiny`` lies in its folder."""
    write_package(pytester.path, "tiny", TINY)
    pytester.syspathinsert()
    asked = AuditWasAsked(imports)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        result = pytester.runpytest_inprocess(*args, plugins=[asked])
    out = f"{result.stdout.str()}\n{result.stderr.str()}"
    return Ran(int(result.ret), out, asked.outcomes, asked.audit)
