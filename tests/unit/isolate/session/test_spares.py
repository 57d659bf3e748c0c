"""Tests of the interpreters that are started ahead; forked children stand in for most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from pytest_cudafork.isolate.session import spares
from pytest_cudafork.isolate.session.request import SPAWNED_TESTS, target_of
from pytest_cudafork.isolate.session.spares import Spares
from pytest_cudafork.process import launch, supervision
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import CHILD_ENV
from tests.support.isolation import is_gone
from tests.unit.isolate.session import items_of


class _Started:
    """Starts children that wait, and notes for which targets."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.running: list[launch.Running] = []
        self.refuse = False
        self.begun: list[int] = []
        """Those that the caretaker was told of."""

    def start_spawn(self, entry: str, data: Any, caretaker: Any) -> launch.Running:
        if self.refuse:
            raise OSError("no process is left")
        assert entry == SPAWNED_TESTS

        def wait(channel: Channel, stacks_fd: int) -> NoReturn:
            channel.receive()
            os._exit(0)

        self.targets += data["targets"]
        self.running.append(launch.start_fork(wait, caretaker=caretaker))
        return self.running[-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> _Started:
    """What is started in the place of interpreters, of which two may wait."""
    made = _Started()
    stand_in = SimpleNamespace(start_spawn=made.start_spawn, usable_cores=lambda: 3)
    monkeypatch.setattr(spares, "launch", stand_in)
    return made


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    """Four tests."""
    return items_of(pytester, "\n".join(f"def test_{name}(): pass" for name in "abcd"))


@pytest.fixture
def ahead(started: _Started, items: list[pytest.Item]) -> Iterator[Spares]:
    """Interpreters that wait, for a session of these tests."""
    caretaker: Any = SimpleNamespace(
        begun=lambda cookie, pid: started.begun.append(pid),
        over=lambda cookie: None,
        descriptors=list,
    )
    made = Spares(items[0].config, caretaker)
    yield made
    made.close()


def test_as_many_are_started_as_cores_are_free_each_for_its_test(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    ahead.prepare(items)
    assert started.targets == [target_of(item) for item in items[:2]]
    assert ahead.descriptors() == [one.sock.fileno() for one in started.running]
    assert started.begun == [pid for one in started.running for pid in (0, one.pid)]
    ahead.prepare(items)
    assert len(started.running) == 2


def test_real_interpreters_wait_each_for_its_test(
    items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "usable_cores", lambda: 2)
    first, second, third, _ = items
    second.stash[CHILD_ENV] = {"GPU": "1"}
    ahead = Spares(first.config)
    try:
        ahead.prepare([first, third])
        assert len(ahead.descriptors()) == 1
        running = ahead.take(first, {})
        assert running is not None
        assert ahead.take(first, {}) is None
        supervision.Supervisor(running).kill()
        ahead.prepare([second])  # what its environment will be is not known before its turn
        assert ahead.descriptors() == []
    finally:
        ahead.close()


def test_a_test_takes_its_own_and_nobody_elses(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    ahead.prepare(items[:2])
    assert ahead.take(items[1], {}) is started.running[1]
    assert ahead.take(items[1], {}) is None
    assert ahead.take(items[2], {}) is None
    assert ahead.descriptors() == [started.running[0].sock.fileno()]
    supervision.Supervisor(started.running[1]).kill()


def test_those_whose_tests_do_not_come_soon_are_ended(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    ahead.prepare(items[:2])
    ahead.prepare(items[1:3])
    assert is_gone(started.running[0].pid)
    assert not started.running[1].has_ended
    assert started.targets == [target_of(item) for item in items[:3]]
    started.refuse = True  # where no other can be started, too
    ahead.prepare(items[3:])
    assert [is_gone(one.pid) for one in started.running] == [True] * 3
    assert ahead.descriptors() == []


def test_a_test_with_variables_of_its_own_gets_none_ahead(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    items[0].stash[CHILD_ENV] = {"MORE": "1"}
    ahead.prepare(items[:2])
    assert started.targets == [target_of(items[1])]
    assert ahead.take(items[1], {"MORE": "1"}) is None
    assert is_gone(started.running[0].pid)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("ANYTHING", False), (environment.TEST, True), (environment.PHASE, True)],
)
def test_one_with_another_environment_is_of_no_use(
    ahead: Spares,
    started: _Started,
    items: list[pytest.Item],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kept: bool,
) -> None:
    ahead.prepare(items[:1])
    monkeypatch.setenv(name, "changed")
    taken = ahead.take(items[0], {})
    assert (taken is not None) is kept
    if taken is not None:
        supervision.Supervisor(taken).kill()
    assert is_gone(started.running[0].pid)


def test_one_without_the_variables_that_its_test_turns_out_to_have_is_of_no_use(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    ahead.prepare(items[:1])
    assert ahead.take(items[0], {"X": "1"}) is None
    assert is_gone(started.running[0].pid)


def test_one_that_has_ended_is_of_no_use(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    ahead.prepare(items[:1])
    os.kill(started.running[0].pid, 9)
    os.waitid(os.P_PID, started.running[0].pid, os.WEXITED | os.WNOWAIT)
    assert ahead.take(items[0], {}) is None


def test_where_no_process_is_left_nothing_is_said_yet(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    started.refuse = True
    ahead.prepare(items)
    assert ahead.take(items[0], {}) is None
    started.refuse = False
    ahead.prepare(items)
    assert len(started.running) == 2


def test_at_the_end_none_is_left(
    ahead: Spares, started: _Started, items: list[pytest.Item]
) -> None:
    ahead.prepare(items)
    ahead.close()
    assert [is_gone(one.pid) for one in started.running] == [True, True]
    assert ahead.descriptors() == []
