"""Whether another plugin takes part in a session."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_cudafork.compat.plugins.taking_part import takes_part


def test_a_plugin_takes_part_where_its_module_is_registered(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, plugin = pytester.parseconfig(), ModuleType("no_such_plugin")
    assert not takes_part(config, "no_such_plugin")
    monkeypatch.setitem(sys.modules, "no_such_plugin", plugin)
    assert not takes_part(config, "no_such_plugin")
    config.pluginmanager.register(plugin)
    assert takes_part(config, "no_such_plugin")
