"""Tests of what is used of pluggy's inner parts."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_cudafork.compat import pluggy_internals
from tests.unit.compat import require


def test_pluggy_still_lists_implementations(pytestconfig: pytest.Config) -> None:
    hook = pytestconfig.hook.pytest_runtest_logreport
    require("pluggy", hook, "_hookimpls", "reports that only the parent shows")


class Plugin:
    """Notes that it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def pytest_runtest_logstart(self) -> None:
        """Note it."""
        self.asked += 1


def test_a_hook_reaches_the_plugins_that_are_kept() -> None:
    manager = pytest.PytestPluginManager()
    kept, dropped = Plugin(), Plugin()
    for plugin in (kept, dropped):
        manager.register(plugin)
    pluggy_internals.keep_plugins(manager, "pytest_runtest_logstart", [kept])
    manager.hook.pytest_runtest_logstart(nodeid="", location=("", 0, ""))
    assert (kept.asked, dropped.asked) == (1, 0)


def test_managers_still_have_what_calls_a_hook(pytestconfig: pytest.Config) -> None:
    require("pluggy", pytestconfig.pluginmanager, "_inner_hookexec", "a stack that is two shorter")


class Protocol:
    """Answers as a test's protocol does, and notes how deep the stack is."""

    def __init__(self, result: object) -> None:
        self.result = result
        self.depths: list[int] = []

    def pytest_runtest_protocol(self, nextitem: object) -> object:
        """Note it."""
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        self.depths.append(depth)
        return self.result


def test_a_hook_is_called_from_two_frames_fewer_with_the_same_result() -> None:
    manager = pytest.PytestPluginManager()
    later, first, silent = Protocol("later"), Protocol("first"), Protocol(None)
    for plugin in (later, first, silent):
        manager.register(plugin)
    hook = manager.hook.pytest_runtest_protocol
    call = pluggy_internals.call_of_first_result(manager, hook, item=None, nextitem=None)
    assert (call(), hook(item=None, nextitem=None)) == ("first", "first")
    for plugin in (first, silent):
        short, usual = plugin.depths
        assert short == usual - 2
    assert later.depths == []


def test_whoever_traces_calls_hears_of_it() -> None:
    manager = pytest.PytestPluginManager()
    manager.register(Protocol("result"))
    heard: list[str] = []

    def before(name: str, implementations: Any, arguments: Any) -> None:
        heard.append(name)

    def after(outcome: Any, name: str, implementations: Any, arguments: Any) -> None:
        heard.append(outcome.get_result())

    manager.add_hookcall_monitoring(before, after)
    hook = manager.hook.pytest_runtest_protocol
    pluggy_internals.call_of_first_result(manager, hook, item=None, nextitem=None)()
    assert heard == ["pytest_runtest_protocol", "result"]


def test_where_pluggy_has_no_such_thing_the_hook_is_called() -> None:
    class Other:
        """A manager of a release to come."""

    call = pluggy_internals.call_of_first_result(Other(), dict, one=1)
    assert call() == {"one": 1}
