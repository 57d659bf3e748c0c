"""Names of pytest-timeout."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import timeout
from tests.unit.compat import require


@pytest.fixture
def plugin() -> Any:
    """The plugin itself, where it is installed."""
    return pytest.importorskip("pytest_timeout")


def test_pytest_timeout_still_has_the_names(plugin: Any) -> None:
    require("pytest-timeout", plugin, "is_debugging", "time limits in children")
    require("pytest-timeout", plugin, "PYTEST_FAILURE_MESSAGE", "time limits in children")
    require("pytest-timeout", plugin, "TimeoutHooks.pytest_timeout_set_timer", "time limits")
    require("pytest-timeout", plugin, "TimeoutHooks.pytest_timeout_cancel_timer", "time limits")


def test_the_message_is_the_plugins_own(plugin: Any) -> None:
    assert timeout.is_loaded()
    assert "1.5" in timeout.failure_message(1.5)


@pytest.mark.parametrize("disabled", [False, True])
def test_a_debugger_stops_the_clock_unless_told_otherwise(
    disabled: bool, monkeypatch: pytest.MonkeyPatch, plugin: Any
) -> None:
    monkeypatch.setattr(plugin, "is_debugging", lambda: True)
    settings = SimpleNamespace(disable_debugger_detection=disabled)
    assert timeout.is_held_by_debugger(settings) is not disabled


def test_a_limit_is_cancelled_by_what_was_set(pytester: pytest.Pytester, plugin: Any) -> None:
    item = pytester.getitem("def test_func(): pass")
    item.config.pluginmanager.import_plugin("pytest_timeout")
    calls: list[str] = []
    timeout.set_canceller(item, lambda: calls.append("cancelled"))
    timeout.cancel_timer(item)
    assert calls == ["cancelled"]


def test_a_session_without_it_has_nothing_to_cancel(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: Any
) -> None:
    timeout.cancel_timer(pytester.getitem("def test_func(): pass"))
    monkeypatch.delitem(sys.modules, "pytest_timeout")
    assert not timeout.is_loaded()


def test_a_stand_in_needs_no_more_than_these_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(is_debugging=lambda: True, PYTEST_FAILURE_MESSAGE="after %ss")
    monkeypatch.setitem(sys.modules, "pytest_timeout", module)
    assert timeout.is_loaded()
    assert timeout.failure_message(2) == "after 2s"
    assert timeout.is_held_by_debugger(SimpleNamespace(disable_debugger_detection=False))
    assert not timeout.is_held_by_debugger(SimpleNamespace(disable_debugger_detection=True))
    item: Any = SimpleNamespace(config=SimpleNamespace(hook=SimpleNamespace()))
    timeout.cancel_timer(item)
    cancelled: list[Any] = []
    hook = SimpleNamespace(pytest_timeout_cancel_timer=lambda item: cancelled.append(item))
    item.config.hook = hook
    timeout.set_canceller(item, lambda: None)
    timeout.cancel_timer(item)
    assert cancelled == [item]
    assert item.cancel_timeout() is None
