"""What is remembered of the tests before by those that skip a test because another one has failed.

It is noted by a hook around the report of a phase, in the process that makes the report, and asked
for by one before a later test. So the pytest process notes what it is told of isolated tests, and
the process of a test is told what was noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest

from pytest_cudafork.compat.plugins import dependency, depends
from pytest_cudafork.isolate import incremental

Find = Callable[[Any], pytest.Item | None]
"""Finds a test of this process by its name in the pytest process."""


class Keeper(Protocol):
    """What remembers tests: a plugin, or a recipe that has been copied into a conftest."""

    def begin(self, config: pytest.Config, items: Sequence[pytest.Item]) -> bool:
        """Whether it remembers tests of this session; if so, it is ready for them."""

    def note(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Let it know of a report that was made in another process."""

    def pack(self, items: Sequence[pytest.Item | None]) -> list[Any]:
        """Return what each of these tests is to be told; None where that adds nothing."""

    def enter(self, item: pytest.Item, packed: Any, find: Find) -> None:
        """Let it know, in the process of a test, what was packed for that."""


_ALL: Mapping[str, Keeper] = {
    "dependency": dependency,
    "depends": depends,
    "incremental": incremental,
}
_KEEPERS = pytest.StashKey[dict[str, Keeper]]()
"""What remembers tests in a session."""


def begin(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Look, when tests are collected of which some are isolated, what remembers tests here."""
    config.stash[_KEEPERS] = {name: one for name, one in _ALL.items() if one.begin(config, items)}


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


def enter(item: pytest.Item, packed: dict[str, Any], find: Find) -> None:
    """Let it be remembered in the process of a test, before that begins.

    Args:
        item: The test.
        packed: What ``pack`` has returned for it in the pytest process.
        find: Finds the others of this process.

    """
    for name, known in packed.items():
        _ALL[name].enter(item, known, find)
