"""Tests of the call of a hook without pluggy's own frames."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest

from pytest_cudafork.compat import pluggy_internals


class _Hooks:
    """A hook whose first result counts."""

    @pluggy.HookspecMarker("here")(firstresult=True)
    def ask(self, item: object) -> object:
        """Say something of the item."""


class _Plugin:
    """Says what it is asked."""

    def __init__(self) -> None:
        self.below: Any = None

    @pluggy.HookimplMarker("here")
    def ask(self, item: object) -> object:
        self.below = sys._getframe(1)
        return item


def test_pluggy_has_the_call_that_the_frames_only_hand_on(pytestconfig: pytest.Config) -> None:
    manager: Any = pytestconfig.pluginmanager
    assert callable(manager._inner_hookexec)


def test_a_hook_is_called_from_here_with_one_frame_between() -> None:
    manager = pluggy.PluginManager("here")
    manager.add_hookspecs(_Hooks)
    plugin, nobody = _Plugin(), _Plugin()
    manager.register(nobody)
    manager.register(plugin)
    config: Any = SimpleNamespace(pluginmanager=manager)
    assert pluggy_internals.call_of(config, manager.hook.ask, item=1)() == 1
    assert plugin.below.f_back is sys._getframe()
    assert nobody.below is None


def test_with_another_pluggy_it_is_called_as_usual() -> None:
    config: Any = SimpleNamespace(pluginmanager=object())
    assert pluggy_internals.call_of(config, dict, a=1)() == {"a": 1}
