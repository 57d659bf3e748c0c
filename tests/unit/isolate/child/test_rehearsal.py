"""Tests of the rehearsal, on a session that has collected in this process."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.isolate.child.rehearsal import OwnHooks, Rehearsal

SOURCE = """
import pytest

SEEN = []

@pytest.fixture(autouse=True, scope="session")
def whole(): SEEN.append("whole")

@pytest.fixture(autouse=True)
def each(): SEEN.append("each")

def setup_module(): SEEN.append("module")

def test_a(): SEEN.append("test")
"""

PHASES = ["protocol", "setup", "call", "teardown"]


class _Plugin:
    """Takes note of the phases of each test that it hears of."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def pytest_runtest_protocol(self) -> None:
        self.seen.append("protocol")

    def pytest_runtest_setup(self) -> None:
        self.seen.append("setup")

    def pytest_runtest_call(self) -> None:
        self.seen.append("call")

    def pytest_runtest_teardown(self) -> None:
        self.seen.append("teardown")


def _register(session: pytest.Session, module: str) -> _Plugin:
    """Register a plugin whose class is defined in a module of this name."""
    plugin: _Plugin = type("Plugin", (_Plugin,), {"__module__": module})()
    session.config.pluginmanager.register(plugin)
    return plugin


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sessions here load no plugin that happens to be installed: that takes a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def item(pytester: pytest.Pytester) -> pytest.Item:
    """The test of a user."""
    return pytester.getitem(SOURCE, "test_a")


@pytest.fixture
def session(item: pytest.Item) -> pytest.Session:
    """A session that has collected it."""
    return item.session


def test_the_whole_protocol_is_run_and_leaves_nothing(
    session: pytest.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    plugin = _register(session, "_pytest.a_plugin")
    before = dict(os.environ)
    rehearsal = Rehearsal(session)
    rehearsal.run(3)
    assert plugin.seen == 3 * PHASES
    rehearsal.run(1)
    assert plugin.seen == 4 * PHASES
    assert dict(os.environ) == before
    assert not session.testsfailed
    assert not session._setupstate.stack
    assert "cudafork_rehearsal" not in [one.name for one in session.items]


@pytest.mark.parametrize(
    "module", ["conftest", "their_plugin", "pytest_cudafork.check.hooks", "_pytest.terminal"]
)
def test_the_user_the_ledger_and_the_terminal_do_not_hear_of_it(
    session: pytest.Session, item: Any, module: str
) -> None:
    plugin = _register(session, module)
    Rehearsal(session).run(2)
    assert plugin.seen == []
    assert item.module.SEEN == []


def test_a_plugin_that_is_a_module_goes_by_its_own_name(session: pytest.Session) -> None:
    seen: list[str] = []
    for name in ("_pytest.ours", "theirs"):
        module = ModuleType(name)
        vars(module)["pytest_runtest_call"] = lambda name=name: seen.append(name)
        session.config.pluginmanager.register(module)
    Rehearsal(session).run(1)
    assert seen == ["_pytest.ours"]


def test_a_hook_is_looked_up_once(session: pytest.Session) -> None:
    hooks = OwnHooks(session.config.pluginmanager)
    first = hooks.pytest_runtest_call
    assert hooks.pytest_runtest_call is first


def test_it_is_given_up_at_the_first_error(session: pytest.Session) -> None:
    plugin = _register(session, "_pytest.a_plugin")

    class Broken:
        __module__ = "_pytest.broken"

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self) -> None:
            plugin.seen.append("broken")
            raise AttributeError("no such inner part")

    session.config.pluginmanager.register(Broken())
    rehearsal = Rehearsal(session)
    rehearsal.run(3)
    rehearsal.run(3)
    assert plugin.seen == ["broken"]


def test_a_pytest_without_the_inner_parts_is_no_error(
    session: pytest.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("_pytest.fixtures.FuncFixtureInfo")
    plugin = _register(session, "_pytest.a_plugin")
    Rehearsal(session).run(1)
    assert plugin.seen == []


def test_where_set_up_is_shown_it_would_be_shown_too(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("--setup-show")
    collected = pytest.Session.from_config(config)
    plugin = _register(collected, "_pytest.a_plugin")
    Rehearsal(collected).run(1)
    assert plugin.seen == []
