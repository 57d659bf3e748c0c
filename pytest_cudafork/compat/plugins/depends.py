"""What the plugin uses of pytest-depends; only its marker and options are public.

It keeps the outcomes of all tests in a ``DependencyManager`` for each session, the last one of
``managers``, in the process that has made the report, and skips a test by what it finds there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat.plugins.taking_part import takes_part


def begin(config: pytest.Config, items: Sequence[pytest.Item]) -> bool:
    """Whether it takes part in this session."""
    return takes_part(config, "pytest_depends")


def _manager() -> Any:
    return sys.modules["pytest_depends"].managers[-1]


def _name(item: pytest.Item) -> str:
    name: str = sys.modules["pytest_depends"].clean_nodeid(item.nodeid)
    return name


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let it know of a report that was made in another process.

    Its ``register_result`` refuses the second report of a phase, and a test may be run again.
    """
    _manager().results[_name(item)].results[report.when] = report.outcome


def pack(items: Sequence[pytest.Item | None]) -> list[Any]:
    """Return, for each of these tests, what it depends on; None where it depends on nothing.

    That is the outcomes of the phases of each test that it depends on, by its name, and the names
    that no test has. A session that collects less would not find them.
    """
    manager = _manager()
    packed: list[Any] = []
    for item in items:
        known = None if item is None else manager.dependencies.get(_name(item))
        if known is None or not (known.dependencies or known.unresolved):
            packed.append(None)
            continue
        outcomes = {name: dict(manager.results[name].results) for name in known.dependencies}
        packed.append([outcomes, sorted(known.unresolved)])
    return packed


def enter(item: pytest.Item, packed: Any, find: Callable[[Any], pytest.Item | None]) -> None:
    """Let it know, in the process of a test, what ``pack`` has found in the pytest process."""
    outcomes, unresolved = packed
    manager, made = _manager(), sys.modules["pytest_depends.main"]
    known = manager.dependencies[_name(item)]
    known.dependencies, known.unresolved = set(outcomes), set(unresolved)
    for name, results in outcomes.items():
        # those that have run in this process it knows itself
        manager.results.setdefault(name, made.TestResult(name)).results.update(results)
