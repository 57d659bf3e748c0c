"""The hooks of ``--cuda-fork-captures=audit``: which tests are run once more, and what is told.

A process of its own runs a test again, and only its runner looks at the reports: there is one
report for each phase of a test, of the run as it is, whatever the others show. The teardown's bears
what was found as a property, which JUnit files show and pytest-xdist's workers pass on.
"""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from pytest_cudafork.capture.in_tests.plugin import LISTENERS
from pytest_cudafork.capture.interface.progress import now_at
from pytest_cudafork.capture.rerun import verdict
from pytest_cudafork.capture.rerun.listener import Replays
from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, PROPERTY, Counted, Order, read_order
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.isolate.session.children import children_of
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.option import uses_debugger

_HOOKS = "cudafork-replay-audit"
_LEAST_SECONDS = 120.0
_SLOWER = 10
"""How much longer than as it is a test may take in a process of its own; a hang takes it all."""
_MOST_IN_VAIN = 10
_LEAST_MOST = 100


def begin(config: pytest.Config) -> None:
    """Register the hooks, and the listener that they need."""
    if not config.pluginmanager.has_plugin(_HOOKS):
        audit = ReplayAudit(config)
        config.stash.setdefault(LISTENERS, []).append(audit.replays)
        config.pluginmanager.register(audit, _HOOKS)


class ReplayAudit:
    """The plugin object."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._inside = config.stash[SESSION].isolated
        self.replays = Replays()
        self._item: pytest.Item | None = None
        self._counted: Counted | None = None
        self._began = 0.0
        self._audited = verdict.AuditedTests()

    @property
    def _runs_tests(self) -> bool:
        """Whether tests run in this process, and their reports begin here."""
        return not (self._inside or self._config.pluginmanager.has_plugin("dsession"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Know the test, and count its replays from here on."""
        self._item, self._counted, self._began = item, None, time.monotonic()
        self.replays.begin(read_order(environment.value(environment.REPLAYS)))
        try:
            return (yield)
        finally:
            self._item = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the report of the call say what the replays came to."""
        report = yield
        counted = self.replays.counted
        if call.when == "call" and (counted.replays or counted.elsewhere):
            report.user_properties.append((PROPERTY, counted.text()))
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Run the test once more before the last of its reports is told to anybody."""
        if self._inside:
            return
        if type(report) is pytest.TestReport and self._item is not None and self._runs_tests:
            self._look_at(self._item, report)
        self._audited.add(report)

    def _look_at(self, item: pytest.Item, report: pytest.TestReport) -> None:
        counted = [text for name, text in report.user_properties if name == PROPERTY]
        report.user_properties[:] = [each for each in report.user_properties if each[0] != PROPERTY]
        if report.when != "teardown":
            passed = report.when == "call" and report.passed and not hasattr(report, "wasxfail")
            self._counted = Counted.read(str(counted[0])) if counted and passed else None
        elif self._counted is not None and report.passed:
            try:
                said = self._audit(item, self._counted)
            except Exception as error:  # the outcome of the test stands
                said = verdict.not_judged(
                    f"it could not be run once more: {type(error).__name__}: {error}"
                )
            report.user_properties.append((verdict.PROPERTY, said))

    def _audit(self, item: pytest.Item, counted: Counted) -> str:
        """Run a test once or twice more; return what is to be said of it."""
        from pytest_cudafork.capture.rerun.child import run_again

        if not counted.replays:
            return verdict.sentence(counted, {})
        if uses_debugger(self._config):
            return verdict.not_judged(
                "a debugger, which --pdb and --trace start, needs the terminal"
            )
        now_at("run once more, with replays that do nothing")
        limit = _LEAST_SECONDS + _SLOWER * (time.monotonic() - self._began)
        most = max(_LEAST_MOST, _MOST_IN_VAIN * counted.replays)
        children = children_of(self._config)
        runs = {IDLE: run_again(item, Order(IDLE, most), children, limit)}
        if not counted.changes and not runs[IDLE].passed:
            now_at("run once more, with other inputs in its graphs")
            runs[CHANGED] = run_again(item, Order(CHANGED, most), children, limit)
        return verdict.sentence(counted, runs)

    def pytest_unconfigure(self) -> None:
        """Listen no more to children that are still there."""
        self.replays.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that cannot fail."""
        if not self._audited:
            return
        terminalreporter.section("tests of replays that cannot fail")
        for line in self._audited.lines():
            terminalreporter.write_line(line)
