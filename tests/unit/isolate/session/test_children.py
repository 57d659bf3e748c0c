"""Tests of which process runs a test, and of what becomes of it afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import children as module
from pytest_cudafork.isolate.session.children import (
    _START,
    CHILDREN,
    Children,
    children_of,
    close_children,
)
from pytest_cudafork.process import supervision
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.protocol.server_messages import CannotFork
from pytest_cudafork.process.randomness import Randomness
from pytest_cudafork.settings import METHODS
from tests.support.isolation import is_gone

SOURCE = """
import os
def test_a(): assert os.environ.get("BY") != "fails"
def test_b(): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    items = pytester.getitems(SOURCE)
    items[0].session.items = items
    return items


@pytest.fixture
def children(items: list[pytest.Item]) -> Iterator[Children]:
    made = Children(items[0].config, Randomness(), [])
    yield made
    made.finish()


def run(children: Children, item: pytest.Item, method: str, following: Any = None) -> list[str]:
    """Run a test in a child; return the kinds of messages."""
    process = children.process_for(item, following, Method(method))
    kinds: list[str] = []

    def take(message: messages.Message, fds: list[int]) -> supervision.Said:
        kinds.append(message.kind)
        for fd in fds:
            os.close(fd)
        if isinstance(message, messages.TestOver):
            return supervision.Said.LEAVING if message.last else supervision.Said.DONE
        done = isinstance(message, messages.Done)
        return supervision.Said.DONE if done else supervision.Said.MORE

    ending = process.supervisor.watch(take, 60.0, until_done=True)
    assert ending is None
    children.keep(process, following)
    return kinds


def test_each_method_has_its_way() -> None:
    assert set(_START) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_a_test_runs_in_a_child(method: str, children: Children, items: list[pytest.Item]) -> None:
    if method == "forkserver":
        assert not children.has_fork_server
        assert children.why_not_forked(items[0]) is None
        assert children.has_fork_server
    children.look_ahead(items[0], [], None)
    kinds = run(children, items[0], method)
    assert kinds.count("report") == 3
    assert kinds[-2:] == ["over", "done"]
    children.end_leftovers()


def test_a_group_shares_a_process_and_ends_with_its_last_test(
    children: Children, items: list[pytest.Item]
) -> None:
    first, second = items
    assert "done" not in run(children, first, "fork", second)
    group = children._group
    assert group is not None
    pid = group.supervisor.running.pid
    assert run(children, second, "fork")[-1] == "done"
    children._settle(wait=True)
    assert is_gone(pid)


def test_a_group_whose_next_test_does_not_come_is_torn_down(
    children: Children, items: list[pytest.Item]
) -> None:
    run(children, items[0], "fork", items[1])
    group = children._group
    assert group is not None
    pid = group.supervisor.running.pid
    children.close()
    assert is_gone(pid)


def test_a_file_that_cannot_be_forked_is_left_out(
    children: Children, items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    item, path = items[0], str(items[0].path)
    reasons = [CannotFork(path, "threads", "threads run (x)"), None]
    monkeypatch.setattr(children._server, "start", lambda: None)
    monkeypatch.setattr(children._server, "wait_ready", lambda: reasons.pop(0))
    monkeypatch.setattr(type(children._server), "pid", 5)
    why_not = children.why_not_forked(item)
    assert why_not is not None
    assert why_not.text == "threads run (x)"
    assert children.why_not_forked(item) is why_not  # known by now
    assert len(reasons) == 1


def test_where_no_server_can_be_started_all_know(
    children: Children, items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(children._server, "start", refuse)
    for item in items:
        why_not = children.why_not_forked(item)
        assert why_not is not None
        assert why_not.reason == "the fork server could not be started: no process is left"
    with pytest.raises(ChildError, match="again and again"):
        children.process_for(items[0], None, Method("forkserver"))


def test_an_interrupt_while_a_child_is_told_its_work_ends_it(
    children: Children, items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(upcoming: object) -> None:
        raise KeyboardInterrupt

    killed: list[int] = []
    kill = supervision.Supervisor.kill

    def note(self: supervision.Supervisor) -> None:
        killed.append(self.running.pid)
        kill(self)

    monkeypatch.setattr(children._spares, "prepare", interrupt)
    monkeypatch.setattr(supervision.Supervisor, "kill", note)
    with pytest.raises(KeyboardInterrupt):
        children.process_for(items[0], None, Method("fork"))
    assert len(killed) == 1
    assert is_gone(killed[0])


def test_trouble_in_the_end_of_a_group_is_told_loudly(
    children: Children, items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(children, items[0], "fork", items[1])
    monkeypatch.setattr(module, "GROUP_END_SECONDS", 0.0)
    monkeypatch.setattr(supervision, "_STACKS_SECONDS", 0.1)
    with pytest.warns(pytest.PytestWarning, match="it took longer than 0 s"):
        children.close()


def test_a_session_has_its_children_once(items: list[pytest.Item]) -> None:
    config = items[0].config
    close_children(config)  # there are none
    assert CHILDREN not in config.stash
    made = children_of(config)
    assert children_of(config) is made
    close_children(config)
