"""Tests of pytest_cudafork.isolate.session, and what they share: a session in this process."""

from __future__ import annotations

import pytest

_PLUGINS = ("-p", "pytest_cudafork.plugin", "-p", "no:unraisableexception")
"""The second one would collect garbage at the end of each session, for half of its time."""


def items_of(pytester: pytest.Pytester, source: str, *args: str) -> list[pytest.Item]:
    """Return the tests of a file, collected by a session with the plugin and these options."""
    path = pytester.makepyfile(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        config = pytester.parseconfigure(*_PLUGINS, *args, str(path))
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    return list(session.perform_collect())


class Heard:
    """A plugin that notes what a session is told of its tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.reports: list[pytest.TestReport] = []
        self.calls: list[str] = []
        self.warnings: list[str] = []
        config.pluginmanager.register(self)

    def pytest_runtest_logstart(self) -> None:
        """Note the begin of a test."""
        self.calls.append("start")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a report."""
        self.calls.append(f"{report.when} {report.outcome}")
        self.reports.append(report)

    def pytest_runtest_logfinish(self) -> None:
        """Note the end of a test."""
        self.calls.append("finish")

    def pytest_warning_recorded(self, warning_message: object, nodeid: str, when: str) -> None:
        """Note a warning."""
        self.warnings.append(f"{when} of {nodeid}: {getattr(warning_message, 'message', '')}")
