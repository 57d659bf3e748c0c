"""Tests of jobs that a fork server runs and watches by itself, and of what it imports first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TypeVar

import pytest

from pytest_cudafork.process import child, fork_server, unattended_jobs
from pytest_cudafork.process.protocol import messages, server_messages
from pytest_cudafork.process.protocol.server_messages import Limits, ServerSettings
from pytest_cudafork.process.server_process import ServerProcess
from pytest_cudafork.process.shared_mailbox import read_mailbox

HERE = "tests.unit.process.test_unattended_jobs"
ENTRY = f"{HERE}:work"
AnyMessage = TypeVar("AnyMessage", bound=messages.Message)


def work(task: child.Task) -> int:
    """Do what the name says; the job of these tests."""
    assert task.mailbox is not None
    if task.data == "dies":
        os.abort()
    if task.data == "hangs":
        time.sleep(100)
    if task.data == "grows":
        held = bytearray(os.urandom(1 << 20) * 300)
        time.sleep(100)
        del held
    os.write(1, f"output of {task.data}\n".encode())
    task.mailbox.write(
        f"{task.data} {os.getppid()} {'colorsys' in __import__('sys').modules}".encode()
    )
    return 0


class Picky(fork_server.Prepared):
    """It preloads nothing that is called this."""

    def preload(self, name: str) -> bool:
        return name != "this" and super().preload(name)

    def limit_of(self, name: str) -> float | None:
        return 0.3 if name == "hangs" else None


def prepare(server: fork_server.ForkServer) -> None:
    """Serve with what is picky."""
    server.serve(Picky(), told="something")


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    limits = Limits(at_once=2, seconds=30.0, memory=100 << 20)
    made = ServerProcess(ServerSettings(f"{HERE}:prepare", limits=limits, ignore_signals=True))
    yield made
    made.close()
    made.reap()


def next_of(server: ServerProcess, kind: type[AnyMessage]) -> tuple[AnyMessage, bytes]:
    """Return the next message of a class, and what is in the file that came with it."""
    while True:
        found = server.next_message(60.0)
        assert found is not None
        message, fds = found
        left = b"".join(read_mailbox(fd) for fd in fds)
        for fd in fds:
            os.close(fd)
        if isinstance(message, kind):
            return message, left


def test_jobs_run_and_their_ends_are_told(server: ServerProcess) -> None:
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
