"""Tests of one fork server as its parent sees it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_cudafork.process import fork_server, server_process
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.process.protocol import frames, messages, server_messages
from pytest_cudafork.process.protocol.server_messages import ServerSettings
from pytest_cudafork.process.server_process import ForkRefusedError, NoAnswerError, ServerProcess
from tests.support.descriptors import descriptors_left
from tests.support.isolation import is_gone
from tests.support.signs import wait_until

HERE = "tests.unit.process.test_server_process"


def prepare_badly(server: fork_server.ForkServer) -> None:
    """Serve, and fail afterwards; a preparation."""
    server.serve(pid=os.getpid())
    os.write(1, b"words before the end\n")
    if server.settings.data == "hangs":
        time.sleep(100)
    if server.settings.data == "dies when it has said goodbye":
        send = server.send

        def send_and_die(message: messages.Message, fds: tuple[int, ...] = ()) -> None:
            send(message, fds)
            os.abort()

        server.send = send_and_die  # type: ignore[method-assign]
        return
    raise SystemExit(3)


def prepare_and_tell(server: fork_server.ForkServer) -> None:
    """Serve, and tell of a variable; a preparation."""
    server.serve(variable=os.environ.get("ONLY_IN_C"))


def wait_for_death(server: ServerProcess) -> None:
    """Wait until the kernel has nothing left of it but its exit status."""
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)


def stop(server: ServerProcess) -> None:
    """Stop it; return when it is stopped: until then it might still answer."""
    os.kill(server.pid, signal.SIGSTOP)
    wait_until(lambda: process_state.is_stopped(server.pid))


@pytest.fixture(autouse=True)
def _ends_are_waited_for() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # undone after the server's end
        patch.setattr(server_process, "CLOSE_SECONDS", 300.0)
        patch.setattr(server_process, "_STACKS_SECONDS", 300.0)
        yield


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    made = ServerProcess(ServerSettings())
    yield made
    made.close()
    made.reap()


def test_a_server_is_ready_gives_children_and_ends(server: ServerProcess) -> None:
    assert server.wait_ready() is None
    assert server.is_mine
    running = server.take_child()
    assert running.ends_group
    assert not running.has_ended
    os.kill(running.pid, signal.SIGKILL)
    assert running.reap() == -signal.SIGKILL
    running.close()
    assert server.next_message(300.0) is not None  # that it is ready
    assert server.next_message(0.05) is None


def test_each_of_several_threads_hears_of_the_end_of_its_child(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One had taken what the other waited for: its child "was killed by SIGKILL", after 60 s."""
    monkeypatch.setattr(server_process, "_ANSWER_SECONDS", 300.0)
    server.wait_ready()
    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            children = [server.take_child() for _ in range(2)]
            codes = threads.map(lambda child: child.reap(), children)
            for child in children:
                os.kill(child.pid, signal.SIGTERM)
            assert list(codes) == [-signal.SIGTERM] * 2
            for child in children:
                child.close()


def test_what_bears_another_cookie_is_no_message(server: ServerProcess) -> None:
    server.wait_ready()
    server._control.send(frames.encode(server_messages.Fork().to_plain(), bytes(16)))
    server._control.send(b"junk")
    first, second = server.take_child(), server.take_child()
    assert first.pid != second.pid
    assert server._ahead == []
    for running in (first, second):
        running.close()


def test_a_server_that_is_gone_is_noticed(server: ServerProcess) -> None:
    server.wait_ready()
    assert server.kill() == -signal.SIGKILL
    assert server.is_gone
    with pytest.raises(EOFError):
        server.take_child()


def test_a_server_that_is_stopped_is_woken(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_LOOK_SECONDS", 0.05)
    server.wait_ready()
    stop(server)
    running = server.take_child()
    os.kill(running.pid, signal.SIGKILL)
    stop(server)
    assert running.reap() == -signal.SIGKILL
    running.close()
    stop(server)
    assert end(server) == []


def test_a_server_that_is_stopped_again_when_it_was_continued_does_not_answer(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_LOOK_SECONDS", 0.05)
    # It is not continued at all: between SIGCONT and the next SIGSTOP it could answer.
    woken: list[int] = []
    monkeypatch.setattr(process_state, "wake", woken.append)
    server.wait_ready()
    stop(server)
    with pytest.raises(NoAnswerError):
        server.take_child()
    (told,) = end(server)
    assert woken == [server.pid]
    words = "was stopped, and again when it was continued, and was killed while it served"
    assert told.startswith(f"the fork server {words}; it wrote:")
    assert is_gone(server.pid)


def test_those_that_took_its_place_are_continued_too(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = {1, 3}
    woken: list[int] = []
    monkeypatch.setattr(process_state, "is_stopped", lambda pid: pid in stopped)
    monkeypatch.setattr(process_state, "wake", woken.append)
    server.wait_ready()
    told: list[messages.Message] = [
        *(server_messages.TookPlace(pid) for pid in (1, 2, 3)),
        server_messages.Lost([], -9),
        server_messages.Preloaded("x"),
    ]
    monkeypatch.setattr(server, "_receive", lambda deadline: (told.pop(0), []))
    while told:
        server._take_message(0.0)
    server._continue_if_stopped()
    assert woken == [1]
    with pytest.raises(NoAnswerError):
        server._continue_if_stopped()
    told.append(server_messages.Preloaded("a sign of life"))
    server._take_message(0.0)
    server._continue_if_stopped()
    assert woken == [1, 1]


def be_silent(server: fork_server.ForkServer) -> None:
    """Be ready, and answer nothing; a preparation."""
    server.ready()
    time.sleep(100)


def test_a_server_that_does_not_answer_is_killed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerProcess(ServerSettings(f"{HERE}:be_silent"))
    server.wait_ready()
    monkeypatch.setattr(server_process, "_ANSWER_SECONDS", 0.2)
    with pytest.raises(NoAnswerError):
        server.take_child()
    (told,) = end(server)
    assert told.startswith(
        "the fork server gave no process within 0.2 s and was killed while it served; it wrote:"
    )
    assert is_gone(server.pid)


def test_a_refused_fork_is_asked_for_once_more_and_then_told(server: ServerProcess) -> None:
    server.wait_ready()
    server._refusal = "no memory"  # it was some time ago
    server.take_child().close()
    asked = []

    def refuse() -> None:
        asked.append(1)
        server._refusal = "no memory at all"

    server.fork_ahead = refuse  # type: ignore[method-assign]
    server._take_message = lambda deadline: None  # type: ignore[method-assign]
    server._refusal = "no memory"
    with pytest.raises(ForkRefusedError, match="could not fork: no memory at all"):
        server.take_child()
    assert asked == [1]
    del server.fork_ahead, server._take_message


def test_a_child_for_whose_descriptors_there_is_no_room_is_refused_at_once(
    server: ServerProcess,
) -> None:
    server.wait_ready()
    with descriptors_left(1):  # two lead to a child
        with pytest.raises(ForkRefusedError, match="no file descriptor left"):
            server.take_child()
        os.close(os.dup(0))  # the one that came was closed
    server.take_child().close()


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_trouble_at_the_end_is_told_loudly(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerProcess(ServerSettings(f"{HERE}:prepare_badly", how), outputs=True)
    assert server.wait_ready() is None
    assert server.about == {"pid": server.pid}
    if how == "hangs":
        server._control.shutdown(socket.SHUT_WR)
        wait_until(lambda: "words before the end" in server.log)
        monkeypatch.setattr(server_process, "CLOSE_SECONDS", 0.5)
    words = "exited with status 70" if how == "fails" else "did not end within 0.5 s"
    with pytest.warns(RuntimeWarning, match=words) as caught:  # noqa: PT031  # either may warn
        server.close()
        server.reap()
    assert "words before the end" in str(caught[0].message)


class ShutDownAndWait:
    """A connection; whoever shuts it down goes on when the server has died of that."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._control = server._control

    def shutdown(self, how: int) -> None:
        self._control.shutdown(how)
        wait_for_death(self._server)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)


def end(server: ServerProcess) -> list[str]:
    """End a server and return the warnings that came of it."""
    with warnings.catch_warnings(record=True) as caught:
        server.close()
        server.reap()
    return [str(one.message) for one in caught]


def test_a_death_before_anybody_looks_is_told_once() -> None:
    server = ServerProcess(ServerSettings(f"{HERE}:prepare_badly"), outputs=True)
    server.wait_ready()
    server._control = ShutDownAndWait(server)  # type: ignore[assignment]
    (told,) = end(server)
    assert told.startswith("the fork server exited with status 70 at the end of its session; ")


def test_a_death_after_the_last_word_is_told_once() -> None:
    how = "dies when it has said goodbye"
    server = ServerProcess(ServerSettings(f"{HERE}:prepare_badly", how), outputs=True)
    server.wait_ready()
    (told,) = end(server)
    assert told.startswith("the fork server was killed by SIGABRT")
    assert "words before the end" in told


def test_a_death_while_it_served_is_told_once(server: ServerProcess) -> None:
    server.wait_ready()
    os.kill(server.pid, signal.SIGKILL)
    wait_for_death(server)
    (told,) = end(server)
    assert "was killed by SIGKILL" in told
    assert told.endswith(" while it served; it wrote:\n(nothing)")


def test_whoever_ends_it_is_not_told(server: ServerProcess) -> None:
    server.wait_ready()
    server.kill()
    assert end(server) == []


def test_a_variable_that_python_does_not_know_of_is_not_there() -> None:
    libc = ctypes.CDLL(None)
    libc.setenv(b"ONLY_IN_C", b"1", 1)  # as readline does it: each child would take it out again
    try:
        server = ServerProcess(ServerSettings(f"{HERE}:prepare_and_tell"))
    finally:
        libc.unsetenv(b"ONLY_IN_C")
    assert server.wait_ready() is None
    assert server.about == {"variable": None}
    server.close()
    server.reap()


def test_a_quiet_one_ends_without_a_word() -> None:
    server = ServerProcess(
        ServerSettings(f"{HERE}:prepare_badly"), quiet=True, new_session=True, env=dict(os.environ)
    )
    server.wait_ready()
    server.close()
    server.reap()
    assert server.exitcode(300.0) == 70
