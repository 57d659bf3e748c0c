"""Starting ranks: what each is told, what a fork closes, and what is left where it fails."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import ConfigError
from sample_engine.process import launch as launching
from sample_engine.process import rank_process, start_ranks
from sample_engine.process.core_process import CoreOrder
from tests.engine.support.process import Script, descriptors

METHODS = [WorkerMethod.FORK, WorkerMethod.SPAWN]


class NoProcess:
    """Stands in for a process that was started: it is this one, and is not to be killed."""

    exitcode = 0

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid, self.sentinel = os.getpid(), read

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.sentinel)
        os.close(self._write)


def orders_of(monkeypatch: pytest.MonkeyPatch, method: WorkerMethod, ranks: int) -> list[CoreOrder]:
    """What is told to so many ranks; nothing is started."""
    found: list[CoreOrder] = []

    def launch(method: WorkerMethod, target: object, arguments: tuple[Any, ...]) -> NoProcess:
        found.append(arguments[0])
        return NoProcess()

    monkeypatch.setattr(rank_process, "launch", launch)
    config = EngineConfig(tensor_parallel_size=ranks)
    for each in start_ranks.start_ranks(method, config, Script(), 1, 5.0):
        each.close()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_rank_0_is_linked_to_all_others(
    method: WorkerMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what earlier tests have left may be closed at any time
    before = descriptors()
    orders = orders_of(monkeypatch, method, 3)
    assert descriptors() == before
    places = [order.ranks for order in orders if order.ranks is not None]
    assert [(place.rank, place.size) for place in places] == [(0, 3), (1, 3), (2, 3)]
    assert [len(place.links) for place in places] == [2, 1, 1]
    assert {place.step_seconds for place in places} == {5.0}
    assert len({id(place.rendezvous) for place in places}) == 1
    for order, place in zip(orders, places, strict=True):
        own = {order.connection, *place.links}
        assert not own & set(order.to_close)
        # 3 pipes to the front end and 2 between ranks have 10 ends.
        assert len(own) + len(order.to_close) == (10 if method is WorkerMethod.FORK else len(own))


@pytest.mark.parametrize("method", METHODS)
def test_one_process_has_no_ranks(method: WorkerMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    (order,) = orders_of(monkeypatch, method, 1)
    assert order.ranks is None
    assert len(order.to_close) == (1 if method is WorkerMethod.FORK else 0)


def test_where_one_cannot_be_started_the_others_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()  # what earlier tests have left may be closed at any time
    before, whole = descriptors(), launching.launch
    started: list[int] = []

    def launch(*arguments: Any) -> Any:
        if started:
            raise BlockingIOError("no more processes")
        process = whole(*arguments)
        started.append(process.pid or 0)
        return process

    monkeypatch.setattr(rank_process, "launch", launch)
    config = EngineConfig(tensor_parallel_size=2)
    with pytest.raises(BlockingIOError, match="no more processes"):
        start_ranks.start_ranks(WorkerMethod.FORK, config, Script(), os.getpid(), 5.0)
    with pytest.raises(ChildProcessError):  # it is dead, and reaped
        os.waitpid(started[0], os.WNOHANG)
    assert descriptors() == before


def test_the_time_of_a_step_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(start_ranks.STEP_SECONDS_ENV, raising=False)
    assert start_ranks.step_seconds() == 300
    monkeypatch.setenv(start_ranks.STEP_SECONDS_ENV, " 2.5 ")
    assert start_ranks.step_seconds() == 2.5
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv(start_ranks.STEP_SECONDS_ENV, wrong)
        with pytest.raises(ConfigError, match=f"STEP_SECONDS='{wrong}' is not a number"):
            start_ranks.step_seconds()
