"""Tests of jobs that a fork server runs and watches by itself, and of what it imports first."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import pytest

from pytest_cudafork.process import (
    child,
    fork_server,
    hang_stacks,
    unattended_jobs,
)
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol import messages, server_messages
from pytest_cudafork.process.protocol.server_messages import Limits, ServerSettings
from pytest_cudafork.process.server_process import ServerProcess
from pytest_cudafork.process.shared_mailbox import read_mailbox
from pytest_cudafork.process.signals import IgnoredSignals
from pytest_cudafork.process.unattended_jobs import UnattendedJobs
from tests.support.descriptors import open_descriptors
from tests.support.isolation import is_gone
from tests.support.signs import wait_until

HERE = "tests.unit.process.test_unattended_jobs"
ENTRY = f"{HERE}:work"
AT_WORK = "at work"
"""The name that a process takes when its job has begun to hang."""
really_ask = hang_stacks.ask
AnyMessage = TypeVar("AnyMessage", bound=messages.Message)


def work(task: child.Task) -> int:
    """Do what the name says; the job of these tests."""
    assert task.mailbox is not None
    if task.data == "dies":
        os.abort()
    if task.data == "hangs":
        Path("/proc/self/comm").write_text(AT_WORK)
        time.sleep(1000)
    if task.data == "grows":
        Path("/proc/self/comm").write_text(AT_WORK)
        held = b"x" * (150 << 20)
        time.sleep(1000)
        del held
    if task.data.startswith("leaves something and kills its parent"):
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(task.data.partition(": ")[2]).write_text(str(left.pid))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(100)
    os.write(1, f"output of {task.data}\n".encode())
    task.mailbox.write(
        f"{task.data} {os.getppid()} {'colorsys' in __import__('sys').modules}".encode()
    )
    return 0


def ask_at_work(pid: int) -> bool:
    """Ask for stacks as ever, but none whose job has not begun: it has none to show."""
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == AT_WORK, "the job")
    return really_ask(pid)


class Picky(fork_server.Prepared):
    """It preloads nothing that is called this."""

    def preload(self, name: str) -> bool:
        return name != "this" and super().preload(name)

    def limit_of(self, name: str) -> float | None:
        return 0.1 if name == "hangs" else None


def prepare(server: fork_server.ForkServer) -> None:
    """Serve with what is picky."""
    server.serve(Picky(), told="something")


def prepare_slow(server: fork_server.ForkServer) -> None:
    """Serve, and say that a job has begun when all of it has happened."""
    send = server.send

    def send_late(message: messages.Message, fds: tuple[int, ...] = ()) -> None:
        if isinstance(message, server_messages.JobStarted):
            time.sleep(1000)
        send(message, fds)

    server.send = send_late  # type: ignore[method-assign]
    server.serve()


def prepare_for_hangs(server: fork_server.ForkServer) -> None:
    """Serve where each job that is ended has been at work."""
    setattr(hang_stacks, "ask", ask_at_work)  # noqa: B010  # in a process of its own
    setattr(unattended_jobs, "_DYING_SECONDS", 300.0)  # noqa: B010
    prepare(server)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    yield from served("prepare")


@pytest.fixture
def server_of_hangs() -> Iterator[ServerProcess]:
    yield from served("prepare_for_hangs")


def served(preparation: str) -> Iterator[ServerProcess]:
    limits = Limits(at_once=2, seconds=600.0, memory=100 << 20)
    made = ServerProcess(
        ServerSettings(f"{HERE}:{preparation}", limits=limits, ignore_signals=True)
    )
    yield made
    made.close()
    made.reap()


def next_of(server: ServerProcess, kind: type[AnyMessage]) -> tuple[AnyMessage, bytes]:
    """Return the next message of a class, and what is in the file that came with it."""
    while True:
        found = server.next_message(300.0)
        assert found is not None
        message, fds = found
        left = b"".join(read_mailbox(fd) for fd in fds)
        for fd in fds:
            os.close(fd)
        if isinstance(message, kind):
            return message, left


def test_jobs_run_and_their_ends_are_told(server_of_hangs: ServerProcess) -> None:
    server = server_of_hangs
    server.tell(server_messages.QueueJobs(ENTRY, ["a", "dies", "hangs", "grows", "b", "dropped"]))
    server.tell(server_messages.DropJobs(["dropped"]))
    ready, _ = next_of(server, server_messages.Ready)
    assert ready.about == {"told": "something"}
    ended = {}
    for _ in range(5):
        message, left = next_of(server, server_messages.JobEnded)
        ended[message.name] = (message, left)
    assert ended["a"][1].startswith(b"a ")
    assert ended["a"][0].output == "output of a"
    assert (ended["a"][0].exitcode, ended["dies"][0].exitcode) == (0, -6)
    assert "Fatal Python error: Aborted" in ended["dies"][0].stacks
    assert ended["hangs"][0].timed_out
    assert "work" in ended["hangs"][0].stacks
    assert ended["grows"][0].over_memory
    assert not ended["b"][0].timed_out


def test_what_a_job_leaves_is_ended_though_it_killed_the_server_at_once(tmp_path: Path) -> None:
    note = tmp_path / "note"
    server = ServerProcess(ServerSettings(f"{HERE}:prepare_slow"), quiet=True)
    try:
        job = f"leaves something and kills its parent: {note}"
        server.tell(server_messages.QueueJobs(ENTRY, [job]))
        with pytest.raises(EOFError):
            next_of(server, server_messages.JobStarted)
    finally:
        server.close()
        server.reap()
    left = int(note.read_text())
    try:
        assert is_gone(left)
    finally:
        with suppress(OSError):
            os.kill(left, signal.SIGKILL)


def test_a_server_grows_by_what_is_proven_and_by_nothing_else(server: ServerProcess) -> None:
    server.tell(server_messages.Preload(["colorsys", "this", "no_such_module"]))
    server.tell(server_messages.QueueJobs(ENTRY, ["a"]))
    preloaded, _ = next_of(server, server_messages.Preloaded)
    assert preloaded.name == "colorsys"
    _, left = next_of(server, server_messages.JobEnded)
    _, parent, there = left.decode().split()
    assert there == "True"
    assert int(parent) != server.pid  # the process that has taken its place


def test_the_end_of_a_file_is_kept_where_its_start_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fd = os.memfd_create("output")
    os.write(fd, b"x" * 5000 + b" last")
    assert unattended_jobs.last_text(fd).endswith("x last")
    assert len(unattended_jobs.last_text(fd)) == 2000
    monkeypatch.setattr(unattended_jobs, "_MOST_KEPT", 1000)
    unattended_jobs.forget_start(fd)
    os.write(fd, b"more")
    assert unattended_jobs.last_text(fd) == "more"
    os.close(fd)


# -- the server's part of it, in this process ----------------------------------------------------


class Here:
    """What the jobs use of a server, which is this process; their processes are real."""

    def __init__(self, limits: Limits) -> None:
        self.prepared: Any = Wishes()
        self.settings = ServerSettings()
        self.signals = IgnoredSignals()
        self.poller = select.poll()
        self.connection, self.parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sent: list[messages.Message] = []
        self.left: list[bytes] = []
        self.jobs = UnattendedJobs(self, limits)  # type: ignore[arg-type]  # all that they use

    def fork(self, body: Callable[[], NoReturn]) -> tuple[int, int]:
        pid = os.fork()
        if pid == 0:
            try:
                body()
            finally:
                os._exit(99)
        with suppress(OSError):
            os.setpgid(pid, pid)
        pidfd = os.pidfd_open(pid)
        self.poller.register(pidfd, select.POLLIN)
        return pid, pidfd

    def send(self, message: messages.Message, fds: Sequence[int] = ()) -> None:
        self.sent.append(message)
        for fd in fds:
            with open(os.dup(fd), "rb") as file:
                file.seek(0)
                self.left.append(file.read())

    def serve(self) -> list[server_messages.JobEnded]:
        """Run what waits, and what that asks for, to the end."""
        self.jobs.begin_some(may_grow=True)
        while self.jobs.running:
            self.jobs.look_after({fd for fd, _ in self.poller.poll(20)})
            self.jobs.begin_some(may_grow=True)
        return [one for one in self.sent if isinstance(one, server_messages.JobEnded)]

    def close(self) -> None:
        self.jobs.end()
        self.connection.close()
        self.parent.close()


class Wishes(fork_server.Prepared):
    """Notes what it was asked; the job "wishes" has two modules preloaded, one of them no good."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.times_grown = 0

    def limit_of(self, name: str) -> float | None:
        return 0.1 if name == "hangs" else None

    def preload(self, name: str) -> bool:
        return name != "no good"

    def grown(self) -> None:
        self.times_grown += 1

    def wants_preloaded(self, name: str, left: bytes, exitcode: int, waiting: int) -> list[str]:
        return ["no good", "this one"] if name == "wishes" else []

    def worth_trying(self, names: list[str]) -> list[str]:
        return [] if self.refused else names

    def refuse(self, name: str) -> None:
        self.refused.append(name)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A server in this process, of which no child is to take the place."""
    monkeypatch.setattr(child, "die_with_parent", lambda yes=True: None)
    made = Here(Limits(at_once=2, seconds=600.0, memory=0))
    yield made
    made.close()


def test_as_many_run_as_may_and_those_that_were_dropped_do_not(here: Here) -> None:
    here.jobs.add(ENTRY, ["a", "b", "c", "dropped"])
    here.jobs.drop(["dropped"])
    here.jobs.begin_some(may_grow=True)
    assert here.jobs.running == len(here.jobs.pidfds()) == 2
    ended = here.serve()
    assert {one.name: one.exitcode for one in ended} == {"a": 0, "b": 0, "c": 0}
    assert {one.output for one in ended} == {"output of a", "output of b", "output of c"}
    assert sorted(left.split()[0] for left in here.left) == [b"a", b"b", b"c"]
    started = [one for one in here.sent if isinstance(one, server_messages.JobStarted)]
    assert [one.name for one in started] == ["a", "b", "c"]
    assert sorted(one.pid for one in started) == sorted(one.pid for one in ended)


def test_what_takes_too_long_or_too_much_is_ended_and_told(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_stacks, "ask", ask_at_work)
    monkeypatch.setattr(unattended_jobs, "_DYING_SECONDS", 300.0)
    here.jobs.add(ENTRY, ["hangs"])
    (hung,) = here.serve()
    assert (hung.timed_out, hung.over_memory) == (True, False)
    assert hung.stacks.count(", line ") > 3  # the end of them: this process began long ago
    monkeypatch.setattr(freeze_before_fork, "bytes_beyond_ours", lambda pid: 6)
    monkeypatch.setattr(here.jobs, "_limits", Limits(at_once=1, memory=5))
    monkeypatch.setattr(hang_stacks, "ask", lambda pid: False)
    here.jobs.add(ENTRY, ["grows"])
    (_, grown) = here.serve()
    assert (grown.timed_out, grown.over_memory) == (False, True)
    assert grown.exitcode == -signal.SIGKILL


def test_one_that_was_asked_for_its_stacks_and_does_not_end_is_killed(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_stacks, "ask", lambda pid: True)
    monkeypatch.setattr(unattended_jobs, "_DYING_SECONDS", 0.05)
    here.jobs.add(ENTRY, ["hangs"])
    (hung,) = here.serve()
    assert (hung.timed_out, hung.exitcode) == (True, -signal.SIGKILL)


def test_at_the_end_none_runs_any_more(here: Here) -> None:
    here.jobs.add(ENTRY, ["a", "grows"])
    here.jobs.begin_some(may_grow=True)
    pids = [one.pid for one in here.sent if isinstance(one, server_messages.JobStarted)]
    here.jobs.end()
    assert here.jobs.running == 0
    assert [is_gone(pid) for pid in pids] == [True, True]


def test_what_a_job_wants_preloaded_is_tried_in_a_child_before_the_next_one(here: Here) -> None:
    here.jobs.preload(["no good", "this one"])
    here.jobs.add(ENTRY, ["a"])
    here.jobs.begin_some(may_grow=False)  # the parent's children would be lost
    assert here.jobs.running == 1
    assert here.prepared.refused == []
    here.jobs.add(ENTRY, ["wishes", "b"])
    assert len(here.serve()) == 3
    assert here.prepared.refused == ["no good"]
    assert here.prepared.times_grown >= 1


def test_good_modules_are_counted_until_one_is_not_good_or_the_parent_says_no_more(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "take_place", lambda: os._exit(7), raising=False)
    assert here.jobs._try(["this one", "no good", "that one"]) == ["this one"]
    # all are good: the child has taken the place of this process, and was lost
    here.jobs.add(ENTRY, ["waits"])
    assert here.jobs._try(["this one", "that one"]) == []
    (lost,) = [one for one in here.sent if isinstance(one, server_messages.Lost)]
    assert (lost.names, lost.exitcode) == (["this one", "that one"], 7)
    assert here.serve() == []
    here.parent.shutdown(socket.SHUT_WR)
    assert here.jobs._try(["this one", "no good"]) == []


@pytest.mark.parametrize("seconds", [0.0, 3e6, 1e10, 1e300, float("inf")])
def test_modules_are_tried_however_long_a_job_may_take(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(child, "die_with_parent", lambda yes=True: None)
    made = Here(Limits(at_once=1, seconds=seconds))
    try:
        assert made.jobs._try(["this one", "no good"]) == ["this one"]
    finally:
        made.close()


def test_modules_that_took_long_are_not_tried_again(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []

    def good(names: list[str]) -> list[str]:
        tried.append(names)
        return names[:1]

    monkeypatch.setattr(here.jobs, "_try", good)
    monkeypatch.setattr(unattended_jobs, "_DEAR_SECONDS", -1.0)
    here.jobs.preload(["a", "b", "c"])
    here.jobs.begin_some(may_grow=True)
    assert tried == [["a", "b", "c"], ["a"]]
    assert here.prepared.refused == ["b"]


def test_a_job_for_which_no_process_is_left_waits_until_another_has_ended() -> None:
    """It waits in the queue, with nothing of it left open; where none runs, none will end."""
    refused = BlockingIOError(errno.EAGAIN, "no process is left")
    forks: list[int | OSError] = [1, refused, 2, refused, refused]
    begun: list[str] = []
    told: list[messages.Message] = []

    def fork(body: object) -> tuple[int, int]:
        due = forks.pop(0)
        if isinstance(due, OSError):
            raise due
        return 0, -due

    def send(message: messages.Message) -> None:
        if isinstance(message, server_messages.JobStarted):
            begun.append(message.name)
        told.append(message)

    server: Any = SimpleNamespace(fork=fork, send=send, prepared=fork_server.Prepared())
    jobs = UnattendedJobs(server, Limits(at_once=2))
    jobs.add(ENTRY, ["a", "b", "c"])
    gc.collect()  # what earlier tests have left may be closed at any time
    before = open_descriptors()
    for so_far in (["a"], ["a", "b"]):
        jobs.begin_some(may_grow=False)
        assert begun == so_far
        _, job = jobs._running.popitem()  # it has ended
        job._things.close()
        assert open_descriptors() == before
    with pytest.raises(BlockingIOError):
        jobs.begin_some(may_grow=False)
    assert told[-1] == server_messages.JobsRefused(str(refused)), "its parent knows why it ends"
    assert open_descriptors() == before
