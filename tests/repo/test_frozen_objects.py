"""What was there before the first test stays frozen."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.support.frozen_objects import FrozenObjects


def finish(hook: Generator[None, Any, Any]) -> None:
    """Run a hook that wraps others, with nothing to wrap."""
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(None)


@pytest.fixture
def frozen() -> Iterator[FrozenObjects]:
    """The plugin, as after a collection."""
    plugin = FrozenObjects()
    plugin.pytest_configure()
    plugin._frozen = True
    plugin._modules = len(sys.modules)
    yield plugin
    plugin._frozen = False  # nothing is left to do at the end of this process
    plugin.pytest_unconfigure()


def test_what_a_test_has_unfrozen_is_frozen_again(frozen: FrozenObjects) -> None:
    hook = frozen.pytest_runtest_protocol()
    next(hook)
    gc.unfreeze()
    assert gc.get_freeze_count() == 0
    with pytest.raises(StopIteration):
        hook.send(None)
    assert gc.get_freeze_count() > 1000


def test_a_collector_that_a_test_has_switched_off_is_switched_on_again(
    frozen: FrozenObjects,
) -> None:
    hook = frozen.pytest_runtest_protocol()
    next(hook)
    gc.disable()
    with pytest.raises(StopIteration):
        hook.send(None)
    assert gc.isenabled()


def test_what_is_frozen_is_not_frozen_once_more(
    frozen: FrozenObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("it was frozen"))
    finish(frozen.pytest_runtest_protocol())


def test_modules_that_a_test_imports_are_frozen_if_they_are_many(
    frozen: FrozenObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen_at: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen_at.append(len(sys.modules)))
    before = len(sys.modules)
    for number in range(60):
        hook = frozen.pytest_runtest_protocol()
        next(hook)
        monkeypatch.setitem(sys.modules, f"module_of_a_test_{number}", ModuleType("a_module"))
        with pytest.raises(StopIteration):
            hook.send(None)
    assert frozen_at == [before + 50]


def test_the_function_is_given_back() -> None:
    before = gc.unfreeze
    plugin = FrozenObjects()
    plugin.pytest_configure()
    assert gc.unfreeze is not before
    plugin.pytest_unconfigure()
    assert gc.unfreeze is before


def test_tests_run_with_what_was_collected_frozen() -> None:
    assert gc.get_freeze_count() > 1000
