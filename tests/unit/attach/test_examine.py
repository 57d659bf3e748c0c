"""A server that runs is read from outside, with its children, and is not disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork.attach import examine as examine_module
from pytest_cudafork.attach.examine import examine, to_plain
from pytest_cudafork.attach.target import Unreadable, read_target
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.process.descendants.leftovers import descendants
from pytest_cudafork.process.descendants.process_state import status_of
from pytest_cudafork.process.native_stacks import PythonStack
from tests.support.attached import running


def test_a_server_and_its_poisoned_child(tmp_path: Path) -> None:
    with running(tmp_path, "touch", "fork", watched=True) as server:
        pid, child = server.pids
        found = examine(pid, stacks=False)
        of_child = examine(child, stacks=False)
    state = found.member.state
    assert state.verdict is Verdict.INITIALIZED
    assert state.touch is not None
    assert state.touch.where.endswith("server.py:8")
    assert found.ledger == server.ledger
    (below,) = found.descendants
    assert (below.target.pid, below.state.verdict) == (child, Verdict.POISONED)
    assert [frame.lineno for frame in below.state.fork][:1] == [20]
    assert found.poisoned
    assert of_child.poisoned
    assert of_child.member.state.touch is not None, "from the process that it was forked from"
    data = json.loads(json.dumps(to_plain(found)))
    assert data["cuda"] == "initialized"
    assert data["descendants"][0]["forked_at"].endswith("server.py:20")
    assert len(data["threads"]) == 2


def test_a_server_that_touches_nothing_is_clean(tmp_path: Path) -> None:
    with running(tmp_path, "fork", watched=True) as server:
        watched = examine(server.pids[0], stacks=False)
    with running(tmp_path, "fork", watched=False) as server:
        unwatched = examine(server.pids[0], stacks=False)
    for found in (watched, unwatched):
        assert found.member.state.verdict is Verdict.CLEAN
        assert [each.state.verdict for each in found.descendants] == [Verdict.CLEAN]
        assert not found.poisoned
    assert unwatched.ledger == ""
    assert watched.ledger


def namespace() -> list[str]:
    """Return the command that runs a program in a PID namespace of its own, as a container does."""
    for options in ("-pf", "-Urpf"):  # a user's own namespaces, where this is not root
        command = ["unshare", options, "--mount-proc"]
        done = subprocess.run([*command, "true"], capture_output=True, check=False)
        if done.returncode == 0:
            return command
    pytest.skip("this system lets nobody make a PID namespace")


def test_a_server_in_a_container_is_known_by_its_number_there(tmp_path: Path) -> None:
    command = [*namespace(), sys.executable]
    with running(tmp_path, "touch", "fork", watched=True, command=command) as server:
        numbers = {each: status_of(each, "NSpid").split() for each in descendants(os.getpid())}
        outside = {int(words[-1]): each for each, words in numbers.items() if len(words) > 1}
        pid, child = (outside[number] for number in server.pids)
        found, of_child = examine(pid, stacks=False), examine(child, stacks=False)
    assert server.pids[0] == 1
    assert found.member.state.verdict is Verdict.INITIALIZED
    assert found.member.state.touch is not None
    assert [each.state.verdict for each in found.descendants] == [Verdict.POISONED]
    assert of_child.member.state.verdict is Verdict.POISONED
    assert "forked from process 1 of its PID namespace" in of_child.member.state.why
    assert [frame.lineno for frame in of_child.member.state.fork][:1] == [20]


def test_a_ledger_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with running(tmp_path, "touch", watched=True) as server:
        named = examine(server.pids[0], server.ledger, stacks=False)
        assert named.member.state.verdict is Verdict.INITIALIZED
        with pytest.raises(OSError, match="nope"):
            examine(server.pids[0], str(tmp_path / "nope"), stacks=False)


def test_a_child_that_ends_or_is_another_users_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, "fork", watched=False) as server:
        first = server.pids[0]

        def read(pid: int) -> object:
            if pid != first:
                raise Unreadable(f"process {pid} may not be read")
            return read_target(pid)

        monkeypatch.setattr(examine_module, "read_target", read)
        found = examine(first, stacks=False)
    assert found.descendants == ()
    assert found.unreadable == (f"process {server.pids[1]} may not be read",)


def test_stacks_are_those_of_python_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = PythonStack(7, "main", ("a.py:1 in f",))
    monkeypatch.setattr(examine_module, "python_stacks", lambda pid: ((stack,), ""))
    with running(tmp_path, watched=False) as server:
        assert examine(server.pids[0]).stacks == (stack,)
        monkeypatch.setattr(
            examine_module, "read_target", lambda pid: read_target(pid)._replace(python="")
        )
        found = examine(server.pids[0])
    assert found.stacks == ()
    assert found.why_no_stacks.startswith("it runs no Python: /")
