"""Tests of fresh interpreters that are started ahead of the tests they are meant for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.isolate.session.spares import Spares
from pytest_cudafork.process import launch, supervision
from pytest_cudafork.settings.markers import CHILD_ENV
from tests.support.isolation import is_gone


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    return pytester.getitems("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")


@pytest.fixture
def spares(items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch) -> Iterator[Spares]:
    monkeypatch.setattr(launch, "usable_cores", lambda: 2)
    made = Spares(items[0].config)
    yield made
    made.close()


def test_as_many_wait_as_there_are_cores_for(spares: Spares, items: list[pytest.Item]) -> None:
    first, second, third = items
    second.stash[CHILD_ENV] = {"GPU": "1"}
    spares.prepare([first, third])
    assert len(spares.descriptors()) == 1
    running = spares.take(first, {})
    assert running is not None
    assert spares.take(first, {}) is None
    supervision.Supervisor(running).kill()
    spares.prepare([second])  # what its environment will be is not known before its turn
    assert spares.descriptors() == []


def test_one_whose_world_has_changed_is_ended(
    spares: Spares, items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    for env, name in (({"X": "1"}, ""), ({}, "CUDAFORK_TEST_CHANGED")):
        spares.prepare(items[:1])
        (waiting, _) = spares._waiting[items[0]]
        if name:
            monkeypatch.setenv(name, "1")
        assert spares.take(items[0], env) is None
        assert is_gone(waiting.pid)


def test_one_that_is_not_wanted_any_more_is_ended(
    spares: Spares, items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    spares.prepare(items[:1])
    (waiting, _) = spares._waiting[items[0]]

    def refuse(*args: Any) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(launch, "start_spawn", refuse)
    spares.prepare(items[1:])
    assert is_gone(waiting.pid)
    assert spares.descriptors() == []
