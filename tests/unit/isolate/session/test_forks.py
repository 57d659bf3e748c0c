"""Tests of the forks of this process: one test each of a session here runs in them."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from pytest_cudafork.isolate.child import pytest_session
from pytest_cudafork.isolate.child.capture_files import capture_files
from pytest_cudafork.isolate.session import forks
from pytest_cudafork.isolate.session.forks import Forks
from pytest_cudafork.isolate.session.request import INHERITED, work_order
from pytest_cudafork.process import launch, supervision
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.forking.short_stack import perform
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.randomness import Randomness
from pytest_cudafork.process.signals import ChildSignal
from pytest_cudafork.process.supervision import Said
from tests.support.isolation import is_gone
from tests.unit.isolate.session import items_of

SOURCE = """
import os

def test_a(): pass

def test_b(): pass

def test_descriptor(): raise Exception(os.readlink(f"/proc/self/fd/{os.environ['FD']}"))
"""

FILTERS = [("always", None, Warning, None, 0)]
"""Those of warnings outside every test."""


class _Stage:
    """A session and its forks."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self.items = {item.name: item for item in items}
        self.a, self.b = items[:2]
        self.config = self.a.config
        self.begun: list[int] = []
        caretaker: Any = SimpleNamespace(
            begun=lambda cookie, pid: self.begun.append(pid),
            over=lambda cookie: None,
            descriptors=list,
        )
        self.forks = Forks(self.config, Randomness(), FILTERS, ChildSignal(), caretaker)

    def run(
        self, running: launch.Running, item: pytest.Item, env: dict[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """Let a child run its test; return the phases that it reports, and what each shows."""
        supervisor = supervision.Supervisor(running)
        supervisor.outbox.put(work_order(item, None, env=env or {}))
        said: list[tuple[str, str]] = []

        def take(message: messages.Message, fds: list[int]) -> Said:
            for fd in fds:
                os.close(fd)
            if isinstance(message, messages.Report):
                said.append((message.data["when"], _shown(message.data)))
            return Said.LEAVING if isinstance(message, messages.TestOver) else Said.MORE

        ending = supervisor.watch(take, 300.0)
        assert ending is not None
        assert (ending.exitcode, ending.malformed) == (0, "")
        return said

    def take(self, item: pytest.Item, env: dict[str, str], private: list[int]) -> launch.Running:
        """Return a child for a test."""
        return perform(self.forks.take(item, env, private))

    def use_time_of(self, item: pytest.Item, *following: pytest.Item) -> None:
        """Prepare for the next forks."""
        perform(self.forks.use_time_of(item, lambda: following, []))

    def ahead(self) -> launch.Running | None:
        """Return the child that waits for the next turn."""
        waiting = self.forks._ahead
        return waiting[0][1] if waiting else None


def _shown(data: dict[str, Any]) -> str:
    longrepr = data.get("longrepr")  # a passed phase travels without what the one before had
    return str(longrepr["reprcrash"]["message"] if isinstance(longrepr, dict) else longrepr)


PASSED = [("setup", "None"), ("call", "None"), ("teardown", "None")]


@pytest.fixture
def stage(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Stage]:
    """A session, whose children practice nothing."""
    monkeypatch.setattr(launch, "usable_cores", lambda: 1)
    made = _Stage(items_of(pytester, SOURCE))
    yield made
    made.forks.forget_ahead()


def test_a_fork_runs_a_test_without_reach_to_other_processes(stage: _Stage) -> None:
    item = stage.items["test_descriptor"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        env = {"FD": str(ours.fileno())}
        phases = stage.run(stage.take(item, env, [ours.fileno()]), item, env)
    assert phases == [PASSED[0], ("call", f"Exception: {os.devnull}"), PASSED[2]]


def test_children_find_the_directory_for_temporary_files_made(
    stage: _Stage, pytester: pytest.Pytester
) -> None:
    folder = pytester.path / "temporary"
    stage.config._tmp_path_factory._given_basetemp = folder  # type: ignore[attr-defined]
    running = stage.take(stage.a, {}, [])
    assert stage.begun == [0, running.pid]
    assert folder.is_dir()
    assert stage.run(running, stage.a) == PASSED


class Cycle:
    """An object that only the garbage collector frees."""

    alive = 0

    def __init__(self) -> None:
        type(self).alive += 1
        self.me = self

    def __del__(self) -> None:
        type(self).alive -= 1


@pytest.mark.slow
def test_garbage_of_this_process_is_freed_between_forks(stage: _Stage) -> None:
    for _ in range(20):
        for _ in range(400):  # fewer than make a collection begin
            Cycle()
        running = stage.take(stage.a, {}, [])
        supervision.Supervisor(running).kill()
    assert Cycle.alive < 4000


def told(running: launch.Running) -> str:
    """Return what a child says that is told to end."""
    said: list[str] = []

    def take(message: messages.Message, fds: list[int]) -> Said:
        assert isinstance(message, messages.InternalError)
        said.append(message.text)
        return Said.MORE

    supervisor = supervision.Supervisor(running)
    supervisor.outbox.put(messages.End())
    supervisor.watch(take, 300.0)
    return said[0]


@pytest.mark.parametrize(("cores", "practice"), [(2, False), (3, True)])
def test_one_forked_ahead_begins_anew_and_has_time_to_practice(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch, cores: int, practice: bool
) -> None:
    def run_forked(
        item: pytest.Item,
        env: dict[str, str],
        reporter: object,
        channel: Channel,
        stacks_fd: int,
        *,
        practice: bool,
    ) -> NoReturn:
        begun_anew = warnings.filters == FILTERS
        channel.receive()
        text = f"{item.name} {env} {type(reporter).__name__} {begun_anew} {practice}"
        channel.send(messages.InternalError(text))
        os._exit(0)

    monkeypatch.setattr(pytest_session, "run_forked", run_forked)
    monkeypatch.setattr(launch, "usable_cores", lambda: cores)
    running = stage.take(stage.a, {"MORE": "1"}, [])
    assert told(running) == "test_a {'MORE': '1'} Reporter True False"
    stage.a.stash[INHERITED] = b""  # what fixtures have put on stays
    assert told(stage.take(stage.a, {}, [])) == "test_a {} Reporter False False"
    del stage.a.stash[INHERITED]
    stage.use_time_of(stage.a, stage.b)
    running = stage.take(stage.b, {}, [])
    assert told(running) == f"test_b {{}} Reporter True {practice}"


def test_the_next_test_is_forked_while_one_works(stage: _Stage) -> None:
    stage.use_time_of(stage.a, stage.b)
    ahead = stage.ahead()
    assert ahead is not None
    assert stage.forks.descriptors() == [ahead.sock.fileno()]
    stage.use_time_of(stage.a, stage.items["test_descriptor"])
    assert stage.ahead() is ahead
    assert stage.take(stage.b, {}, []) is ahead
    assert stage.forks.descriptors() == []
    assert stage.run(ahead, stage.b) == PASSED


def test_several_are_forked_at_once_and_none_knows_of_another(stage: _Stage) -> None:
    last = stage.items["test_descriptor"]
    stage.use_time_of(stage.a, stage.b, last)
    first, second = stage.forks.descriptors()
    stage.use_time_of(stage.a, stage.a)
    assert stage.forks.descriptors() == [first, second]
    running = stage.take(stage.b, {}, [])
    assert (running.sock.fileno(), stage.forks.descriptors()) == (first, [second])
    assert stage.run(running, stage.b) == PASSED
    running = stage.take(last, {}, [])
    said = dict(stage.run(running, last, {"FD": str(first)}))
    assert said["call"] == "Exception: /dev/null"
    assert stage.ahead() is None


def test_a_test_that_may_not_follow_is_not_forked_ahead(stage: _Stage) -> None:
    stage.use_time_of(stage.a)
    assert stage.ahead() is None


def test_a_child_of_another_test_is_ended(stage: _Stage) -> None:
    stage.use_time_of(stage.a, stage.b)
    ahead = stage.ahead()
    assert ahead is not None
    stage.forks.keep_ahead_for(stage.b)
    assert stage.ahead() is ahead
    stage.forks.keep_ahead_for(stage.a)
    assert stage.ahead() is None
    assert is_gone(ahead.pid)


def test_one_that_has_ended_is_replaced(stage: _Stage) -> None:
    stage.use_time_of(stage.a, stage.b)
    ahead = stage.ahead()
    assert ahead is not None
    os.kill(ahead.pid, 9)
    os.waitid(os.P_PID, ahead.pid, os.WEXITED | os.WNOWAIT)
    running = stage.take(stage.b, {}, [])
    assert running is not ahead
    assert stage.run(running, stage.b) == PASSED


def test_a_fork_that_is_refused_ahead_is_told_in_its_turn(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("CUDA is initialized")

    monkeypatch.setattr(launch, "fork_steps", refuse)
    stage.use_time_of(stage.a, stage.b)
    assert stage.ahead() is None
    with pytest.raises(RuntimeError, match="CUDA is initialized"):
        stage.take(stage.b, {}, [])


class _Around:
    """A user's plugin that may put anything on around a test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Any:
        return (yield)


class _Beside:
    """One that is asked for the protocol, and is not around it."""

    def pytest_runtest_protocol(self) -> None:
        return None


@pytest.mark.parametrize(("plugin", "ahead"), [(_Around(), False), (_Beside(), True)])
def test_around_a_test_there_may_be_known_plugins_only(
    stage: _Stage, plugin: object, ahead: bool
) -> None:
    stage.config.pluginmanager.register(plugin)
    stage.use_time_of(stage.a, stage.b)
    assert (stage.ahead() is not None) is ahead


def test_nothing_is_forked_ahead_while_fixtures_live_here(stage: _Stage) -> None:
    state = stage.a.session._setupstate
    state.setup(stage.a)
    stage.use_time_of(stage.a, stage.b)
    assert stage.ahead() is None
    state.teardown_exact(None)
    stage.use_time_of(stage.a, stage.b)
    assert stage.ahead() is not None


def test_one_forked_ahead_has_nothing_of_the_test_before(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[list[int]] = []
    monkeypatch.setattr(forks, "renew_files", renewed.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stage.forks._use_filters_outside_tests()
        assert warnings.filters == FILTERS
    stage.forks._capture_apart()
    assert renewed == [capture_files(stage.config)]


class _Collapse:
    """Memory that takes four steps to fold."""

    made: list[_Collapse]

    def __init__(self) -> None:
        self.steps = 0
        self.made.append(self)

    @property
    def done(self) -> bool:
        return self.steps == 4

    def step(self) -> None:
        self.steps += 1


@pytest.mark.parametrize(("tests", "steps"), [(99, []), (100, [[], [3], [4], [4]])])
def test_where_many_forks_follow_they_are_made_cheaper_step_by_step(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch, tests: int, steps: list[list[int]]
) -> None:
    _Collapse.made = []
    monkeypatch.setattr(forks, "Collapse", _Collapse)
    stage.a.session.items = [stage.a] * tests
    seen = []
    for count in range(7):
        stage.use_time_of(stage.a)
        if count >= 3:
            seen.append([one.steps for one in _Collapse.made])
    assert seen == (steps or [[]] * 4)
