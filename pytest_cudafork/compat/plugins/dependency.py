"""What the plugin uses of pytest-dependency; only its marker, options and ``depends`` are public.

It keeps the outcomes of tests on the nodes above them (``dependencyManager`` of a session, package,
module or class), in the process that has made the report, and skips a test by what it finds there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

_PHASES = ("setup", "call", "teardown")


def is_active(config: pytest.Config) -> bool:
    """Whether it takes part in this session."""
    plugin: Any = sys.modules.get("pytest_dependency")
    return plugin is not None and config.pluginmanager.is_registered(plugin)


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let it know of a report that was made in another process, as its hook does of one made here.

    ``DependencyManager.getManager`` and ``addResult``, and ``_automark``, which holds an option.
    """
    plugin: Any = sys.modules["pytest_dependency"]
    marker = item.get_closest_marker("dependency")
    if marker is None and not plugin._automark:
        return
    name = None if marker is None else marker.kwargs.get("name")
    for scope in plugin.DependencyManager.ScopeCls:
        manager = plugin.DependencyManager.getManager(item, scope=scope)
        if manager:
            manager.addResult(item, name, report)


def pack(items: Sequence[pytest.Item | None]) -> list[Any]:
    """Return what it knows, for each of these tests in this order; None where that adds nothing.

    That is, by scope and name, the outcomes of the phases. What tests have in common is told with
    the first of them.
    """
    scopes: Any = sys.modules["pytest_dependency"].DependencyManager.ScopeCls
    told: set[Any] = set()
    packed: list[Any] = []
    for item in items:
        known = {}
        for scope, kind in scopes.items():
            node = None if item is None else item.getparent(kind)
            results = getattr(getattr(node, "dependencyManager", None), "results", None)
            if results and node not in told:
                told.add(node)
                known[scope] = {
                    name: [status.results[phase] for phase in _PHASES]
                    for name, status in results.items()
                }
        packed.append(known or None)
    return packed


def enter(item: pytest.Item, packed: Any) -> None:
    """Let it know, in the process of a test, what ``pack`` has found in the pytest process."""
    plugin: Any = sys.modules["pytest_dependency"]
    for scope, results in packed.items():
        manager = plugin.DependencyManager.getManager(item, scope=scope)
        for name, outcomes in results.items():
            status = manager.results[name] = plugin.DependencyItemStatus()
            status.results.update(zip(_PHASES, outcomes, strict=True))
