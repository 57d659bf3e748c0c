"""What the plugin uses of pytest-dependency; only its marker, options and ``depends`` are public.

It keeps the outcomes of tests on the nodes above them (``dependencyManager`` of a session, package,
module or class), in the process that has made the report, and skips a test by what it finds there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat.plugins.taking_part import takes_part

_PHASES = ("setup", "call", "teardown")


def begin(config: pytest.Config, items: Sequence[pytest.Item]) -> bool:
    """Whether it takes part in this session."""
    return takes_part(config, "pytest_dependency")


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
    """Return what each of these tests, in this order, may ask for; None where that adds nothing.

    That is, by scope and name, the outcomes of the phases. A test that uses ``request`` may ask for
    any by ``depends()``; what such tests have in common is told with the first of them.
    """
    told: set[Any] = set()
    packed: list[Any] = []
    for item in items:
        if item is None:
            known = {}
        elif "request" in getattr(item, "fixturenames", ()):
            known = _all(item, told)
        else:
            known = _named_by_marker(item)
        packed.append(known or None)
    return packed


def _all(item: pytest.Item, told: set[Any]) -> dict[str, Any]:
    known = {}
    for scope, kind in sys.modules["pytest_dependency"].DependencyManager.ScopeCls.items():
        node: Any = item.getparent(kind)
        if node not in told:
            told.add(node)
            found = {name: _outcomes(one) for name, one in _results(node).items()}
            if found:
                known[scope] = found
    return known


def _named_by_marker(item: pytest.Item) -> dict[str, Any]:
    marker = item.get_closest_marker("dependency")
    asked = {} if marker is None else marker.kwargs
    scope, names = asked.get("scope", "module"), asked.get("depends") or ()
    kind = sys.modules["pytest_dependency"].DependencyManager.ScopeCls.get(scope)
    results = {} if kind is None else _results(item.getparent(kind))
    found = {name: _outcomes(results[name]) for name in names if name in results}
    return {scope: found} if found else {}


def _results(node: Any) -> dict[str, Any]:
    manager = getattr(node, "dependencyManager", None)
    return {} if manager is None else dict(manager.results)


def _outcomes(status: Any) -> list[Any]:
    return [status.results[phase] for phase in _PHASES]


def enter(item: pytest.Item, packed: Any, find: Callable[[Any], pytest.Item | None]) -> None:
    """Let it know, in the process of a test, what ``pack`` has found in the pytest process."""
    plugin: Any = sys.modules["pytest_dependency"]
    for scope, results in packed.items():
        manager = plugin.DependencyManager.getManager(item, scope=scope)
        for name, outcomes in results.items():
            status = manager.results[name] = plugin.DependencyItemStatus()
            status.results.update(zip(_PHASES, outcomes, strict=True))
