"""Tests of what a child tells of its reports and warnings; reading them is ``report_data``'s."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import forked
from pytest_cudafork.isolate import captured_output
from pytest_cudafork.isolate.child import plugins
from pytest_cudafork.isolate.child.reporter import Reporter
from pytest_cudafork.isolate.report_data import SHOWN
from pytest_cudafork.process.protocol import messages
from tests.support.peer import Peer, of_kind


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The parent."""
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def item(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Item:
    """A test of a session that loads no plugin that happens to be installed: that takes time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("pytest_timeout", "pytest_rerunfailures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return pytester.getitem("def test_fails(unknown): ...", "test_fails")


@pytest.fixture
def reporter(item: pytest.Item) -> Reporter:
    """The reporter of the session, in force."""
    made = Reporter(item.config)
    item.config.pluginmanager.register(made)
    made.take_over(item.session)
    return made


def _warning(text: str, category: type[Warning]) -> warnings.WarningMessage:
    return warnings.WarningMessage(category(text), category, "test_a.py", 1)


def test_reports_of_each_phase_are_packed_and_told(
    item: pytest.Item, reporter: Reporter, peer: Peer
) -> None:
    reporter.report_to(peer.channel)
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    told = of_kind(peer.said(), messages.Report)
    phases = [(one.data["when"], one.data["outcome"]) for one in told]
    assert phases == [("setup", "failed"), ("teardown", "passed")]
    plain, marked = told[0].data[SHOWN]
    assert "fixture 'unknown' not found" in plain
    assert "\x1b[31m" in marked


def test_what_the_last_test_leaves_is_collected_and_what_that_says_is_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, peer: Peer
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    source = """
    import gc, pytest

    class Engine:
        def __init__(self): self.me = self
        def __del__(self): ended.append(self)

    ended = []

    @pytest.fixture
    def engine():
        gc.disable()
        yield Engine()

    def test_it(engine): pass
    """
    one = pytester.getitem(source, "test_it")
    made = Reporter(one.config)
    one.config.pluginmanager.register(made)
    made.take_over(one.session)
    ended: Any = one.getparent(pytest.Module).obj.ended  # type: ignore[union-attr]
    try:
        one.ihook.pytest_runtest_protocol(item=one, nextitem=None)
        assert not ended  # of no effect where there is no channel
        made.report_to(peer.channel)
        one.ihook.pytest_runtest_protocol(item=one, nextitem=one)
        assert not ended
        one.ihook.pytest_runtest_protocol(item=one, nextitem=None)
        assert ended
    finally:
        gc.enable()


def test_what_a_phase_has_written_is_kept_before_its_report_is_made(
    item: pytest.Item, reporter: Reporter, peer: Peer
) -> None:
    made = reporter.kept = captured_output.Kept()
    reporter.report_to(peer.channel)
    item.add_report_section("setup", "stdout", "printed")
    call = pytest.CallInfo.from_call(lambda: None, when="setup")
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    kept = [("setup", [("Captured stdout setup", "printed")])]
    assert captured_output.kept(made.fd) == kept
    item.ihook.pytest_runtest_logreport(report=report)
    assert [type(one) for one in peer.said()] == [messages.Report]
    assert captured_output.kept(made.fd) == kept  # what was sent may not be understood
    for _ in range(2):  # the second time, the test runs once more
        reporter.pytest_runtest_logstart()
    assert captured_output.kept(made.fd) == []
    os.close(made.fd)


def test_warnings_of_collection_are_the_parents(reporter: Reporter, peer: Peer) -> None:
    reporter.report_to(peer.channel)
    reporter.pytest_warning_recorded(_warning("w", UserWarning), "collect")
    assert peer.said() == []
    reporter.pytest_warning_recorded(_warning("w", UserWarning), "runtest")
    assert len(peer.said()) == 1


def test_a_plugin_that_runs_a_test_again_says_so(reporter: Reporter, peer: Peer) -> None:
    for _ in range(2):
        reporter.report_to(peer.channel)
        reporter.pytest_runtest_logstart()
        assert peer.said() == []  # the parent knows of the first time
        reporter.pytest_runtest_logstart()
        assert peer.said() == [messages.RunsAgain()]
        reporter.report_to(None)
        reporter.pytest_runtest_logstart()


def test_between_two_tests_nothing_is_told(reporter: Reporter, peer: Peer) -> None:
    reporter.report_to(peer.channel)
    reporter.report_to(None)
    report: Any = SimpleNamespace()
    reporter.pytest_runtest_logreport(report)
    reporter.pytest_warning_recorded(_warning("w", UserWarning), "runtest")
    assert peer.said() == []


def test_other_processes_hear_of_nothing_but_the_session_counts(
    item: pytest.Item, peer: Peer
) -> None:
    class Theirs:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def pytest_runtest_logreport(self) -> None:
            self.heard.append("report")

        def pytest_runtest_logstart(self) -> None:
            self.heard.append("start")

        def pytest_runtest_logfinish(self) -> None:
            self.heard.append("finish")

        def pytest_warning_recorded(self) -> None:
            self.heard.append("warning")

    theirs, manager = Theirs(), item.config.pluginmanager
    manager.register(theirs)
    reporter = Reporter(item.config)
    manager.register(reporter)
    reporter.take_over(item.session)
    reporter.report_to(peer.channel)
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    assert len(of_kind(peer.said(), messages.Report)) == 2
    assert theirs.heard == []
    assert item.session.testsfailed == 1


def test_what_would_fork_the_test_once_more_is_taken_out(item: pytest.Item) -> None:
    class Peers:
        pass  # a class: pytest 7.4 looks for a plugin among other values by its hash

    session = item.session
    manager = session.config.pluginmanager
    manager.register(Peers(), forked.PEER)
    Reporter(session.config).take_over(session)
    assert not manager.has_plugin(forked.PEER)


def test_plugins_that_need_it_have_a_part_in_the_child(
    item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = item.session
    for name in ("pytest_timeout", "pytest_rerunfailures"):
        module: Any = SimpleNamespace()
        monkeypatch.setitem(sys.modules, name, module)
    Reporter(session.config).take_over(session)
    kinds = {type(one) for _, one in session.config.pluginmanager.list_name_plugin()}
    assert {plugins.TimeLimit, plugins.Phases} <= kinds


def test_a_process_that_ran_out_of_the_test_ends_before_pytest_reads_the_output(
    pytester: pytest.Pytester, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    item = pytester.getitem("def test_passes(): ...", "test_passes")
    asked: list[str] = []

    def read() -> tuple[str, str]:
        asked.append("read")
        return "", ""

    manager: Any = item.config.pluginmanager.get_plugin("capturemanager")
    monkeypatch.setattr(manager, "read_global_capture", read)
    reporter = Reporter(item.config)
    item.config.pluginmanager.register(reporter)
    reporter.take_over(item.session)
    reporter.report_to(peer.channel)
    monkeypatch.setattr(peer.channel, "leave_if_not_mine", lambda: asked.append("mine?"))
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    # the last of each phase asks before it sends a report
    assert asked == ["mine?", "read", "mine?"] * 3
