"""Tests of the client of a fork server: jobs by name, restarts, and what is refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.errors import ChildError
from pytest_cudafork.process import child, fork_server, launch, server_process, supervision
from pytest_cudafork.process.fork_server_client import ForkServerClient, NoServerError
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.protocol.messages import Descriptor
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings
from tests.support.isolation import is_gone

HERE = "tests.unit.process.test_fork_server_client"


def say_where(task: child.Task) -> int:
    """Tell the data, the directory and the parent; the job of these tests."""
    os.write(1, b"on standard output\n")
    text = f"{task.data} {os.getcwd()} {os.getppid()} {type(task.prepared).__name__}"
    task.the_channel().send(messages.InternalError(text))
    return 0


def refuse(server: fork_server.ForkServer) -> None:
    """Say that this process cannot be forked; a preparation."""
    server.ready(CannotFork("a.py", "threads", "threads run (x)"), tests=3)


@pytest.fixture(autouse=True)
def _ends_are_waited_for() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # undone after the server's end
        patch.setattr(server_process, "CLOSE_SECONDS", 300.0)
        yield


@pytest.fixture
def client() -> Iterator[ForkServerClient]:
    made = ForkServerClient(ServerSettings)
    yield made
    made.close()


def result_of(running: launch.Running) -> tuple[list[messages.Message], supervision.Ending | None]:
    said: list[messages.Message] = []

    def take(message: messages.Message, fds: list[int]) -> supervision.Said:
        said.append(message)
        done = isinstance(message, messages.Done)
        return supervision.Said.LEAVING if done else supervision.Said.MORE

    return said, supervision.Supervisor(running).watch(take, 300.0)


def test_a_job_finds_the_world_of_the_process_that_asked(
    client: ForkServerClient, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.pid is None
    monkeypatch.chdir(str(tmp_path))
    output = os.memfd_create("output")
    for number in range(2):
        running = client.start_job(f"{HERE}:say_where", number, {Descriptor.STDOUT: output})
        said, ending = result_of(running)
        text = f"{number} {tmp_path} {client.pid} Prepared"
        assert said == [messages.InternalError(text), messages.Done()]
        assert ending is not None
        assert ending.exitcode == 0
    assert client.starts == 1
    assert os.pread(output, 100, 0) == b"on standard output\n" * 2
    os.close(output)


@pytest.mark.slow
def test_a_server_that_was_killed_is_replaced(client: ForkServerClient) -> None:
    result_of(client.start_job(f"{HERE}:say_where"))
    first = client.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="the fork server was killed by SIGKILL .* while it "):
        said, _ = result_of(client.start_job(f"{HERE}:say_where", "again"))
    assert len(said) == 2
    assert client.pid not in (None, first)
    assert client.starts == 2
    client.close()
    assert client.pid is None
    assert is_gone(first)


def test_children_wait_where_they_are_forked_ahead() -> None:
    client = ForkServerClient(lambda: ServerSettings(most_ahead=1, fold=True), most_starts=2)
    try:
        assert client.wait_ready() is None
        for number in range(3):
            running = client.take_child()
            client.fork_ahead()
            assert client.descriptors()
            running.close()  # no use for it: it ends by itself
            assert is_gone(running.pid), number
    finally:
        client.close()


def test_a_job_that_cannot_be_found_is_an_error_in_its_process(client: ForkServerClient) -> None:
    said, ending = result_of(client.start_job("no.such.module:function"))
    assert isinstance(said[0], messages.InternalError)
    assert "No module named 'no'" in said[0].text
    assert ending is not None
    assert ending.exitcode != 0


@pytest.mark.parametrize(
    ("preparation", "words"),
    [
        (f"{HERE}:refuse", r"did not start: it threads run \(x\)"),
        ("no.such.module:prepare", "did not start: it exited with status 70 before it was ready"),
    ],
)
def test_a_server_that_cannot_be_forked_is_refused_with_the_reason(
    preparation: str, words: str
) -> None:
    client = ForkServerClient(lambda: ServerSettings(prepare=preparation))
    with pytest.raises(ChildError, match=words):
        client.take_child()
    assert client.pid is None
    why_not = client.wait_ready()
    assert why_not is not None
    assert why_not.kind in ("threads", "start")
    client.close()


def test_no_more_servers_are_started_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ForkServerClient(ServerSettings, most_starts=1)

    def take_child(self: object) -> launch.Running:
        raise EOFError("it is gone")

    monkeypatch.setattr(
        "pytest_cudafork.process.server_process.ServerProcess.take_child", take_child
    )
    with pytest.raises(NoServerError, match=r"died 2 times \(warnings tell how\)"):
        client.take_child()
    client = ForkServerClient(ServerSettings)
    with pytest.raises(ChildError, match="died twice while it was asked"):
        client.take_child()


def be_silent(server: fork_server.ForkServer) -> None:
    """Be ready, and answer nothing; a preparation."""
    server.ready()
    time.sleep(100)


def test_a_server_that_does_not_answer_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_ANSWER_SECONDS", 0.2)
    settings = ServerSettings(f"{HERE}:be_silent")
    client = ForkServerClient(lambda: settings, most_starts=9)
    with (
        pytest.warns(RuntimeWarning, match="gave no process within 0.2 s and was killed"),
        pytest.raises(NoServerError, match="2 fork servers did not answer"),
    ):
        client.take_child()
    assert client.starts == 2
    assert not client.may_start


def test_where_no_process_can_be_started_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse_start(*args: object, **kwargs: object) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(unpatched.subprocess, "Popen", refuse_start)
    client = ForkServerClient(ServerSettings)
    with pytest.raises(server_process.ForkRefusedError, match="not be started: no process is left"):
        client.take_child()  # another process may be had in its place, as where it cannot fork
    assert client.refused == "the fork server could not be started: no process is left"
    assert client.starts == 0


def test_why_a_server_could_not_fork_is_known_until_it_can(
    client: ForkServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(server: server_process.ServerProcess) -> None:
        raise server_process.ForkRefusedError("there is no process left")

    client.start()
    with monkeypatch.context() as patch:
        patch.setattr(server_process.ServerProcess, "take_child", refuse)
        with pytest.raises(server_process.ForkRefusedError):
            client.take_child()
    assert client.refused == "there is no process left"
    assert result_of(client.start_job(f"{HERE}:say_where"))
    assert not client.refused


def test_a_process_that_was_forked_forgets_the_server(client: ForkServerClient) -> None:
    client.start()
    pid = client.pid
    assert pid is not None
    forked = os.fork()
    if forked == 0:
        status = 1
        try:
            client.close()
            status = 0 if client.pid is None else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    said, _ = result_of(client.start_job(f"{HERE}:say_where"))
    assert len(said) == 2
    assert client.pid == pid
