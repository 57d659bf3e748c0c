"""What all tests share: how the sessions that they start are run, and what is told at the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import hypothesis
import pytest

from tests.support import (
    imported_ahead,
    interpreter_environment,
    interpreter_servers,
    interpreters,
    rewriting,
    session_ahead,
    slow_folders,
)
from tests.support.frozen_objects import FrozenObjects

# How long an example takes says how busy the machine is; and on a new one the first text waits for
# the table of Unicode. A test gets the same examples each time, until it is changed: so a failure
# says something about the change at hand. ``--hypothesis-profile=explore`` looks for new ones.
hypothesis.settings.register_profile(
    "explore",
    parent=hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "suite", parent=hypothesis.settings.get_profile("explore"), derandomize=True, database=None
)
hypothesis.settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Take note of the environment before a test changes it; no server is started yet."""
    interpreter_servers.servers()
    if not os.environ.get(interpreters.FRESH):
        _prepare_sessions_in_process()
    rewriting.rewrite_share(config, config.rootpath)
    config.pluginmanager.register(FrozenObjects())


def _prepare_sessions_in_process() -> None:
    """Do once what each session does that a test makes in this process, as the servers do it."""
    session_ahead.FixtureNames(session_ahead.plugins_of_pytest()).use()
    imported_ahead.InstalledPackages().answer()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which folders took longest."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    lines = slow_folders.table(reports)
    if lines:
        terminalreporter.section("slowest folders")
        terminalreporter.write_line("\n".join(lines))


def pytest_unconfigure() -> None:
    """End the servers of this process."""
    interpreter_servers.servers().close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep a test that is marked so to fresh interpreters."""
    marker = item.get_closest_marker("fresh_interpreter")
    if marker is None:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(interpreters.FRESH, marker.args[0])
        return (yield)


@pytest.fixture(autouse=True)
def _environment_for_servers() -> Iterator[None]:
    """Undo what a library has set for good, as torch's compiler does for the folder of its cache.

    From then on no server could be used: it was started without.
    """
    before = interpreter_environment.Environment()
    yield
    interpreter_servers.servers().reap_adopted()
    before.restore()


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Pytester, whose sessions and scripts are run by a server of interpreters."""
    original = pytester.popen

    def popen(
        cmdargs: Sequence[str | os.PathLike[str]],
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        stdin: Any = pytester.CLOSE_STDIN,
        **options: Any,
    ) -> Any:
        streams = (stdout, stderr)
        usual = options in ({}, {"close_fds": True})  # pytest before 9 names this default of Popen
        if stdin is not pytester.CLOSE_STDIN or not usual or subprocess.PIPE in streams:
            return original(cmdargs, stdout, stderr, stdin, **options)
        env = dict(os.environ)
        path = [os.getcwd(), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        ours, theirs = os.pipe()
        os.close(theirs)
        try:
            return interpreters.start(
                [os.fspath(arg) for arg in cmdargs],
                stdin=ours,
                stdout=stdout.fileno(),
                stderr=stderr.fileno(),
                env=env,
            )
        finally:
            os.close(ours)

    monkeypatch.setattr(pytester, "popen", popen)
    return pytester
