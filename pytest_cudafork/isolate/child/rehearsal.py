"""The rehearsal: a test that does nothing, run so that the tests that follow are cheap.

It runs in a process that will be forked, and in its children while they wait. Code that has run
before is specialized and has its imports, and does not write to the pages where it lies: each page
that a child writes to first is one that the kernel has to copy.

Nobody but pytest's own plugins and this package's sees the test: the hooks, fixtures and conftests
of the user are not called.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals

_NAME = "cudafork_rehearsal"
_TAKE_PART = ("_pytest", "pytest_cudafork")
_STAY_AWAY = ("pytest_cudafork.check.hooks", "_pytest.terminal")
"""Modules whose plugins would tell of the test: in the ledger, on the terminal."""


class Rehearsal:
    """A test that can be run any number of times."""

    def __init__(self, session: pytest.Session) -> None:
        """Take a session that has collected, and its plugins as they are now."""
        self._session = session
        self._item: _Function | None = None
        self._failed = False

    def run(self, times: int) -> None:
        """Run the whole protocol so many times.

        It is given up at the first error: the tests cost more then, and nothing else is lost.
        """
        if self._failed or self._session.config.getoption("setupshow", False):
            return  # it would be shown
        try:
            item = self._item = self._item or _make_item(self._session)
            for _ in range(times):
                item.own_hooks.pytest_runtest_protocol(item=item, nextitem=None)
        except Exception:  # a release of pytest whose inner parts are others
            self._failed = True


class OwnHooks:
    """The hooks, as far as plugins that take part implement them."""

    def __init__(self, manager: pytest.PytestPluginManager) -> None:
        """Take the plugins as they are now."""
        self._manager = manager
        plugins = [plugin for _, plugin in manager.list_name_plugin() if plugin is not None]
        self._left_out = [plugin for plugin in plugins if not _takes_part(plugin)]

    def __getattr__(self, name: str) -> Any:
        caller = self._manager.subset_hook_caller(name, remove_plugins=self._left_out)
        self.__dict__[name] = caller
        return caller


def _takes_part(plugin: object) -> bool:
    name = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    return name.partition(".")[0] in _TAKE_PART and name not in _STAY_AWAY


class _Function(pytest.Function):
    """A test whose hooks are those that it was given."""

    own_hooks: OwnHooks

    @property
    def ihook(self) -> Any:
        """As pytest itself leaves out the hooks of other directories' conftests."""
        return self.own_hooks


def _make_item(session: pytest.Session) -> _Function:
    """Return a function without fixtures, autouse ones included, right below the session."""
    info = pytest_internals.no_fixtures()
    item: _Function = _Function.from_parent(session, name=_NAME, callobj=_nothing, fixtureinfo=info)
    item.own_hooks = OwnHooks(session.config.pluginmanager)
    return item


def _nothing() -> None:
    """Do nothing."""
