"""What is remembered of the tests before by those that skip a test because another one has failed.

It is noted by a hook around the report of a phase, in the process that makes the report, and asked
for by one before a later test. So the pytest process notes what it is told of isolated tests, and
the process of a test is told what was noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import dependency, depends
from pytest_cudafork.isolate import incremental

_INCREMENTAL = "incremental"
_PLUGINS: dict[str, Any] = {"dependency": dependency, "depends": depends}
_KEEPERS = pytest.StashKey[dict[str, Any]]()
"""What remembers tests in a session."""


def begin(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Look, when tests are collected of which some are isolated, what remembers tests here."""
    keepers = {name: one for name, one in _PLUGINS.items() if one.is_active(config)}
    if any(incremental.is_step(item) for item in items):
        keepers[_INCREMENTAL] = incremental
        config.pluginmanager.register(incremental.InThisProcess(), "cudafork-incremental")
    config.stash[_KEEPERS] = keepers


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Take note, in the pytest process, of a phase that was run in another one."""
    for keeper in item.config.stash.get(_KEEPERS, {}).values():
        keeper.note(item, report)


def pack(items: Sequence[pytest.Item | None]) -> list[dict[str, Any]] | None:
    """Return what is remembered for each of these tests, which may share a process; None: nothing.

    Args:
        items: They, in their order; None where there is no test.

    """
    if not items or items[0] is None:
        return None
    packed: list[dict[str, Any]] = [{} for _ in items]
    for name, keeper in items[0].config.stash.get(_KEEPERS, {}).items():
        for place, known in zip(packed, keeper.pack(items), strict=True):
            if known is not None:
                place[name] = known
    return packed if any(packed) else None


def enter(
    item: pytest.Item, packed: dict[str, Any], find: Callable[[Any], pytest.Item | None]
) -> None:
    """Let it be remembered in the process of a test, before that begins.

    Args:
        item: The test.
        packed: What ``pack`` has returned for it in the pytest process.
        find: Finds a test of this process by its name there.

    """
    for name, known in packed.items():
        if name == _INCREMENTAL:
            incremental.enter(known, find)
        else:
            _PLUGINS[name].enter(item, known)
