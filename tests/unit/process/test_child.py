"""Tests of what every child does first and last, as far as it can be done in this process."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process import child, launch
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.protocol.messages import Descriptor
from tests.support.interpreters import run

HERE = "tests.unit.process.test_child"
COOKIE = bytes(16)
SEEN: list[child.Task] = []


def remember(task: child.Task) -> int:
    """Keep the task; the job of these tests."""
    SEEN.append(task)
    return 5


class FakeChannel:
    """A channel that says nothing."""

    def send(self, message: messages.Message) -> None:
        """Say nothing."""

    def leave_if_not_mine(self) -> None:
        """Stay."""


class LeftError(Exception):
    """The process would have ended."""


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses with which this process would have ended."""
    statuses: list[int] = []

    def leave(status: int) -> None:
        statuses.append(status)
        raise LeftError(status)

    monkeypatch.setattr(unpatched.os, "_exit", leave)
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: None)
    return statuses


def test_a_job_is_found_by_name() -> None:
    assert child.look_up("os.path:join") is os.path.join
    with pytest.raises(ModuleNotFoundError):
        child.look_up("no.such.module:name")
    with pytest.raises(AttributeError):
        child.look_up("os:no_such_name")


def test_a_job_without_a_parent_has_no_channel() -> None:
    with pytest.raises(ValueError, match="needs a parent"):
        child.Task(None, -1).the_channel()


def test_a_job_finds_its_descriptors_and_its_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(theirs, COOKIE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["a"])
    monkeypatch.chdir(tmp_path)
    request = launch.forked_request("data")
    monkeypatch.chdir("/")
    kept = os.dup(1)
    output = os.memfd_create("output")
    with launch.request_file(request) as fd:
        channel.descriptors = [os.dup(fd), os.dup(output)]
        job = messages.Job(f"{HERE}:remember", [Descriptor.REQUEST, Descriptor.STDOUT])
        try:
            assert child.ready_job(channel, job, 7, "prepared")() == 5
            os.write(1, b"text")
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    task = SEEN.pop()
    assert (task.data, task.stacks_fd, task.prepared) == ("data", 7, "prepared")
    assert task.the_channel() is channel
    assert os.pread(output, 10, 0) == b"text"
    assert os.getcwd() == str(tmp_path)
    assert channel.descriptors == []
    for one in (ours, theirs):
        one.close()
    os.close(output)


def test_the_world_of_another_process_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["before"])
    monkeypatch.setenv("STAYS", "1")
    here = child.surroundings({"ADDED": "2"})
    assert here["environ"] == child.environment({"ADDED": "2"})
    monkeypatch.setenv("GOES", "1")
    monkeypatch.setenv("STAYS", "changed")
    monkeypatch.chdir(tmp_path)
    sys.argv[:] = ["after", "more"]
    mask = os.umask(0o077)
    try:
        child.take_over(here)
        assert child.umask() == here["umask"] == mask
    finally:
        os.umask(mask)
    assert "GOES" not in os.environ
    assert (os.environ["STAYS"], os.environ["ADDED"]) == ("1", "2")
    assert os.getcwd() == here["cwd"]
    assert sys.argv == ["before"]
    del os.environ["ADDED"]
    monkeypatch.setenv("GOES", "1")
    child.take_over(here, here["environ"])  # known to be the same: not looked at
    assert os.environ["GOES"] == "1"


def test_a_directory_that_was_removed_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert child.surroundings({})["cwd"] == f"/proc/{os.getpid()}/cwd"


def test_streams_write_to_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    child.adopt_streams()
    assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    monkeypatch.setattr(sys, "stdout", None)  # closed, replaced or broken
    child.flush_streams()


def test_a_process_that_leaves_says_so_where_all_is_well(leaves: list[int]) -> None:
    said: list[messages.Message] = []

    class Parent:
        def send(self, message: messages.Message, /) -> None:
            said.append(message)

    with pytest.raises(LeftError):
        child.leave(0, Parent())
    with pytest.raises(LeftError):
        child.leave(1, Parent())
    assert said == [messages.Done()]
    assert leaves == [0, 1]


@pytest.mark.parametrize("entry", [f"{HERE}:remember", "no.such.module:name"])
def test_a_request_is_done_and_its_process_ends(
    entry: str,
    leaves: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(child, "prepare", lambda stacks_fd: None)
    monkeypatch.setattr(
        "pytest_cudafork.process.descendants.leftovers.mark_process", lambda cookie: True
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["a"])
    monkeypatch.setattr(child, "Channel", lambda sock, cookie: sock.close() or FakeChannel())
    ours, theirs = socket.socketpair()
    stacks = os.memfd_create("stacks")
    with (
        launch.request_file(launch._request(entry, "data", COOKIE)) as fd,
        pytest.raises(LeftError),
    ):
        child.run_request(theirs.detach(), os.dup(fd), stacks)
    if entry.startswith("no."):
        assert leaves == [EXIT_LOST]
        assert "No module named 'no'" in capfd.readouterr().err
    else:
        assert leaves == [5]
        assert SEEN.pop().data == "data"
    ours.close()
    os.close(stacks)


def test_a_prepared_child_leads_a_group_and_tells_its_stacks() -> None:
    stacks = os.memfd_create("stacks")
    pid = os.fork()
    if pid == 0:
        try:
            child.prepare(stacks)
            child.die_with_parent(False)
            child.forget_parent_exit_work()
            ok = os.getpgrp() == os.getpid() and os.read(0, 1) == b""
            os.kill(os.getpid(), signal.SIGABRT if ok else signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGABRT
    assert b"Fatal Python error: Aborted" in os.pread(stacks, 10000, 0)
    os.close(stacks)


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.__stdout__"])
def test_a_line_of_a_prepared_child_is_out_when_it_dies(stream: str) -> None:
    script = f"""
import os, signal, sys
from pytest_cudafork.process import child
child.prepare(os.memfd_create("stacks"))
print("a line", file={stream})
print("part of a line", end="", file={stream})
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = run([sys.executable, "-c", script], timeout=60.0, env=env)
    assert (done.stdout, done.returncode) == ("a line\n", -signal.SIGKILL)


def test_stacks_are_armed_again_and_a_closed_file_is_no_error() -> None:
    enabled = faulthandler.is_enabled()
    stacks = os.memfd_create("stacks")
    try:
        child.arm_stacks(stacks)
        assert faulthandler.is_enabled()
    finally:
        faulthandler.disable()
        os.close(stacks)
        if enabled:
            faulthandler.enable(file=2)
    child.arm_stacks(stacks)
