"""What is remembered of earlier tests: who remembers, and how it reaches the process of a test."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate import earlier_tests, incremental
from tests.unit.isolate.test_incremental import items_of, report


class Keeper:
    """A plugin that remembers tests by their name."""

    def __init__(self) -> None:
        self.known: list[Any] = []
        self.active = True

    def begin(self, config: pytest.Config, items: Sequence[pytest.Item]) -> bool:
        """Say what the test says."""
        return self.active

    def note(self, item: pytest.Item, one: pytest.TestReport) -> None:
        """Remember a phase."""
        self.known.append([item.name, one.when])

    def pack(self, items: Sequence[pytest.Item | None]) -> list[Any]:
        """Tell all of it with the first test."""
        return [list(self.known) or None, *[None] * (len(items) - 1)]

    def enter(self, item: pytest.Item, packed: Any, find: earlier_tests.Find) -> None:
        """Take it."""
        self.known += packed


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """What remembers, besides the recipe."""
    made = Keeper()
    table = {"keeper": made, "incremental": incremental}
    monkeypatch.setattr(earlier_tests, "_ALL", table)
    return made


def test_where_nobody_remembers_nothing_is_told(pytester: pytest.Pytester, keeper: Keeper) -> None:
    keeper.active = False
    items, _ = items_of(pytester, "")
    earlier_tests.note(items[0], report("failed"))  # nobody has begun
    earlier_tests.begin(items[0].config, items)
    earlier_tests.note(items[0], report("failed"))
    assert earlier_tests.pack([*items, None]) is None
    assert earlier_tests.pack([]) is None
    assert earlier_tests.pack([None]) is None
    assert not items[0].config.pluginmanager.has_plugin("cudafork-incremental")


def test_what_is_noted_is_packed_and_entered(pytester: pytest.Pytester, keeper: Keeper) -> None:
    items, conftest = items_of(pytester)
    config = items[0].config
    earlier_tests.begin(config, items)
    assert config.pluginmanager.has_plugin("cudafork-incremental")
    assert earlier_tests.pack(items) is None
    earlier_tests.note(items[0], report("failed"))
    packed = earlier_tests.pack([*items, None])
    assert packed is not None
    assert packed[0].keys() == {"keeper", "incremental"}
    assert packed[1:] == [{}, {}, {}]

    keeper.known.clear()
    conftest.noted.clear()
    found: Any = SimpleNamespace(find=lambda name: items[0])
    earlier_tests.enter(items[1], packed[0], found.find)
    assert keeper.known == [["test_a", "call"]]
    assert conftest.noted == [("test_a", "call", "Failed")]


def test_the_recipe_is_always_asked(pytester: pytest.Pytester, keeper: Keeper) -> None:
    keeper.active = False
    items, _ = items_of(pytester)
    earlier_tests.begin(items[0].config, items)
    earlier_tests.note(items[1], report("failed"))
    packed = earlier_tests.pack(items)
    assert packed is not None
    assert packed[0] == {"incremental": incremental.pack(items)[0]}
