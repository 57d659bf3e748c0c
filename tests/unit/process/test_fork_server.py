"""Tests of the fork server's own side, run in this process: what it answers, forks and reaps."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process import child, fork_server, launch
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.fork_server import ForkServer, Prepared
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol import frames, messages, server_messages, sockets
from pytest_cudafork.process.protocol.server_messages import CannotFork, Limits, ServerSettings

COOKIE = bytes(range(16))


class Parent:
    """The other end of a server that runs in this process."""

    def __init__(self, settings: ServerSettings) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server = ForkServer(theirs, settings, COOKIE, (-1, -1))
        self.sock.settimeout(300)

    def tell(self, message: messages.Message) -> None:
        self.sock.send(frames.encode(message.to_plain(), COOKIE))

    def hear(self) -> tuple[messages.Message, list[int]]:
        data, fds, _, _ = socket.recv_fds(self.sock, 1 << 18, 4)
        message = messages.decode_or_none(frames.only(data, COOKIE))
        assert message is not None
        return message, fds

    def child(self) -> tuple[int, list[int]]:
        message, fds = self.hear()
        assert isinstance(message, server_messages.ChildForked)
        return message.pid, fds


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    monkeypatch.setattr(child, "die_with_parent", lambda yes=True: None)
    made = Parent(ServerSettings(most_ahead=1, limits=Limits(memory=0)))
    yield made
    made.server._end()
    made.server._quiet.__exit__(None, None, None)
    made.sock.close()
    made.server.connection.close()


@pytest.fixture
def parent(fresh: Parent) -> Parent:
    """The parent of a server that has begun to serve, step by step."""
    fresh.server._quiet.__enter__()
    fresh.server.poller.register(fresh.server.connection, select.POLLIN)
    return fresh


def test_it_serves_until_its_parent_is_gone(fresh: Parent) -> None:
    parent = fresh
    parent.tell(server_messages.Waiting())
    parent.tell(server_messages.Fork())
    parent.sock.send(b"junk")
    parent.sock.shutdown(socket.SHUT_WR)
    parent.server.serve(about="this")
    ready, _ = parent.hear()
    assert ready == server_messages.Ready(None, 1, {"about": "this"})
    children = [parent.child() for _ in range(2)]  # one ahead, one that was asked for
    for pid, fds in children:
        for fd in fds:
            os.close(fd)
        with pytest.raises(ChildProcessError):  # it is reaped
            os.waitpid(pid, os.WNOHANG)


def test_at_its_end_a_child_is_reaped_that_has_just_begun(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It bears no mark yet, so that whoever looks for marked processes does not see it die."""
    monkeypatch.setattr(child, "prepare", lambda stacks_fd: time.sleep(100))
    parent.server._fork_attended()
    pid, fds = parent.child()
    parent.server._end()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    for fd in fds:
        os.close(fd)


def test_a_dead_child_is_reaped_and_told(parent: Parent) -> None:
    parent.server._fork_attended()
    pid, fds = parent.child()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 300
    while parent.server._attended and time.monotonic() < deadline:
        assert parent.server._serve_once()
    message, _ = parent.hear()
    assert message == server_messages.ChildEnded(pid, -signal.SIGKILL)
    for fd in fds:
        os.close(fd)


def test_what_a_child_leaves_that_ends_with_the_parent_is_ended(parent: Parent) -> None:
    """The child sees that the parent is gone, and ends, before the server sees it."""
    parent.server._fork_attended()
    pid, fds = parent.child()
    ((_, cookie),) = parent.server._attended.values()
    left = subprocess.Popen(
        ["sleep", "600"],
        start_new_session=True,
        preexec_fn=lambda: leftovers.mark_process(cookie),
    )
    try:
        parent.sock.shutdown(socket.SHUT_RDWR)
        os.kill(pid, signal.SIGKILL)
        select.select([*parent.server._attended], [], [], 300)
        while parent.server._serve_once():
            pass
        parent.server._end()
        assert left.poll() == -signal.SIGKILL
    finally:
        left.kill()
        left.wait()
        for fd in fds:
            os.close(fd)


def test_a_child_that_nobody_needs_ends_well(parent: Parent) -> None:
    parent.server._fork_attended()
    pid, fds = parent.child()
    for fd in fds:
        os.close(fd)
    while parent.server._attended:
        parent.server._serve_once()
    message, _ = parent.hear()
    assert message == server_messages.ChildEnded(pid, 0)


def test_a_child_whose_work_is_known_is_not_told(parent: Parent) -> None:
    class Known(Prepared):
        def job_for(self, channel: Channel, stacks_fd: int) -> Callable[[], int]:
            return lambda: 3

    parent.server.prepared = Known()
    parent.server._fork_attended()
    pid, fds = parent.child()
    while parent.server._attended:
        parent.server._serve_once()
    message, _ = parent.hear()
    assert message == server_messages.ChildEnded(pid, 3)
    for fd in fds:
        os.close(fd)


def test_a_server_that_holds_too_much_ends_when_its_children_have(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_FORKS_PER_LOOK", 1)
    monkeypatch.setattr(fork_server, "_GROWTH_BYTES", 0)
    parent.tell(server_messages.Fork())
    assert parent.server._take_message()
    parent.server._fork_attended()
    parent.tell(server_messages.Fork())
    assert parent.server._take_message()
    assert parent.server._asked == 1  # the first time
    _, fds = parent.child()
    for fd in fds:
        os.close(fd)
    parent.sock.setblocking(False)
    while parent.server._serve_once():
        pass
    assert not parent.server._attended


def test_a_fork_that_is_refused_is_told(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise RuntimeError("the guard refuses")

    monkeypatch.setattr(fork_server, "fork", refuse)
    parent.server._fork_attended()
    assert parent.hear()[0] == server_messages.ForkRefused("RuntimeError: the guard refuses")


@pytest.mark.parametrize("where", ["socketpair", "memfd_create", "pidfd_open", "sendmsg"])
def test_a_child_for_which_no_descriptor_is_left_is_refused_and_ends(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def none_left(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, where)

    forked = []

    def fork() -> int:
        pid = os.fork()
        forked.append(pid)
        return pid

    monkeypatch.setattr(fork_server, "fork", fork)
    if where == "socketpair":
        monkeypatch.setattr(sockets, "pair", none_left)
    elif where == "sendmsg":
        monkeypatch.setattr(parent.server, "_send", fails_with_descriptors(parent, none_left))
    else:
        monkeypatch.setattr(unpatched.os, where, none_left)
    parent.server._fork_attended()
    refusal, _ = parent.hear()
    assert refusal == server_messages.ForkRefused(f"OSError: [Errno {errno.EMFILE}] {where}")
    while parent.server._attended:
        parent.server._serve_once()
    for pid in forked:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def fails_with_descriptors(
    parent: Parent, fail: Callable[..., NoReturn]
) -> Callable[[messages.Message, tuple[int, ...]], None]:
    """Return what sends for a server whose descriptors the kernel does not take."""
    send = parent.server._send
    return lambda message, fds: fail() if fds else send(message, fds)


def test_at_its_end_children_are_reaped_where_no_descriptor_is_left_to_look_for_others(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(children: Mapping[bytes, int]) -> NoReturn:
        raise OSError(errno.EMFILE, "/proc")

    parent.server._fork_attended()
    pid, fds = parent.child()
    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "end", none_left)
        with pytest.raises(OSError, match="/proc"):
            parent.server._end()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    for fd in fds:
        os.close(fd)


def test_a_child_that_holds_too_much_memory_is_killed(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent.server, "settings", ServerSettings(limits=Limits(memory=5)))
    monkeypatch.setattr(freeze_before_fork, "bytes_beyond_ours", lambda pid: 6)
    parent.server._fork_attended()
    pid, fds = parent.child()
    assert parent.server._wait_ms() == 200
    while parent.server._attended:
        parent.server._serve_once()
    assert parent.hear()[0] == server_messages.ChildEnded(pid, -signal.SIGKILL)
    for fd in fds:
        os.close(fd)


def test_requests_for_unattended_jobs_reach_their_queue(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    for name in ("add", "drop", "preload"):
        monkeypatch.setattr(parent.server._jobs, name, lambda *args: asked.append(args))
    for message in (
        server_messages.QueueJobs("a:b", ["x"]),
        server_messages.DropJobs(["y"]),
        server_messages.Preload(["z"]),
    ):
        parent.tell(message)
        assert parent.server._take_message()
    assert asked == [("a:b", ["x"]), (["y"],), (["z"],)]


def test_why_it_cannot_fork_is_told(parent: Parent) -> None:
    parent.server.ready(CannotFork("a.py", "cuda", "CUDA runs"), tests=3)
    ready, _ = parent.hear()
    assert isinstance(ready, server_messages.Ready)
    assert CannotFork(**(ready.why_not or {})).text == "CUDA runs"
    assert ready.about == {"tests": 3}


def test_jobs_that_need_nothing_prepared() -> None:
    prepared = Prepared()
    prepared.begin_child(0)
    prepared.grown()
    prepared.refuse("a")
    assert prepared.limit_of("a") is None
    assert prepared.preload("json")
    assert not prepared.preload("no_such_module")
    assert prepared.wants_preloaded("a", b"", 0, 3) == []
    assert prepared.worth_trying(["json", "no_such_module", "no_such_module"]) == ["no_such_module"]


class LeftError(Exception):
    """The process would have ended."""


@pytest.mark.parametrize(("entry", "status"), [("", 0), ("no.such.module:prepare", EXIT_LOST)])
def test_the_server_is_made_of_its_request(
    entry: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[tuple[int, ForkServer]] = []

    def leave(code: int, server: ForkServer) -> None:
        left.append((code, server))
        raise LeftError

    served: list[ForkServer] = []
    monkeypatch.setattr(child, "leave", leave)
    monkeypatch.setattr(child, "prepare", lambda stacks_fd: None)
    monkeypatch.setattr(
        "pytest_cudafork.process.descendants.leftovers.mark_process", lambda cookie: True
    )
    monkeypatch.setattr(unpatched.gc, "disable", lambda: None)
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(ForkServer, "serve", lambda self: served.append(self))
    ours, theirs = socket.socketpair()
    settings = ServerSettings(entry, path=("p",), argv=("a",))
    request = {"cookie": COOKIE, "settings": settings.to_plain()}
    with launch.request_file(request) as fd, pytest.raises(LeftError):
        fork_server.main(theirs.detach(), os.dup(fd), -1, -1, -1)
    assert [code for code, _ in left] == [status]
    assert len(served) == (0 if entry else 1)
    assert ("No module named" in capsys.readouterr().err) == bool(entry)
    ours.close()
    for _, server in left:  # it would have ended with its process
        server.connection.close()


def test_an_orphan_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(unpatched.os, "_exit", statuses.append)
    fork_server.leave_orphaned(os.getppid())
    fork_server.leave_orphaned(-1)
    assert statuses == [EXIT_LOST]
