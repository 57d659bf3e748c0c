"""Names of pytest-timeout."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import timeout
from tests.unit.compat import require

plugin: Any = pytest.importorskip("pytest_timeout")


def test_pytest_timeout_still_has_the_names() -> None:
    require("pytest-timeout", plugin, "is_debugging", "time limits in children")
    require("pytest-timeout", plugin, "PYTEST_FAILURE_MESSAGE", "time limits in children")
    require("pytest-timeout", plugin, "TimeoutHooks.pytest_timeout_set_timer", "time limits")
    require("pytest-timeout", plugin, "TimeoutHooks.pytest_timeout_cancel_timer", "time limits")


def test_the_message_is_the_plugins_own() -> None:
    assert timeout.is_loaded()
    assert "1.5" in timeout.failure_message(1.5)


@pytest.mark.parametrize("disabled", [False, True])
def test_a_debugger_stops_the_clock_unless_told_otherwise(
    disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "is_debugging", lambda: True)
    settings = SimpleNamespace(disable_debugger_detection=disabled)
    assert timeout.is_held_by_debugger(settings) is not disabled


def test_a_limit_is_cancelled_by_what_was_set(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("def test_func(): pass")
    item.config.pluginmanager.import_plugin("pytest_timeout")
    calls: list[str] = []
    timeout.set_canceller(item, lambda: calls.append("cancelled"))
    timeout.cancel_timer(item)
    assert calls == ["cancelled"]


def test_a_session_without_it_has_nothing_to_cancel(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout.cancel_timer(pytester.getitem("def test_func(): pass"))
    monkeypatch.delitem(sys.modules, "pytest_timeout")
    assert not timeout.is_loaded()
