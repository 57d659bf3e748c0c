"""Tests of calling a function in a child, and of what becomes of what the child says."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from pytest_cudafork.call import run
from pytest_cudafork.errors import (
    ChildCrashed,
    ChildError,
    ChildExit,
    ChildTimeout,
    RemoteTraceback,
)
from pytest_cudafork.process import exit_status, launch, supervision
from pytest_cudafork.process.fork_server_client import ForkServerClient
from pytest_cudafork.process.protocol import frames, messages
from tests.support.child_endings import ending
from tests.support.descriptors import descriptors_left
from tests.support.isolation import is_gone


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerClient]:
    made = run.new_server()
    yield made
    made.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_result_comes_back_by_each_method(method: str, server: ForkServerClient) -> None:
    seen: list[tuple[str, int]] = []
    result = run.Call(
        method, int, ("7",), timeout=60, server=server, observer=lambda *one: seen.append(one)
    ).run()
    assert result == 7
    assert [event for event, _ in seen] == ["started", "ended"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_where_the_machine_gives_no_process_that_is_told(
    method: str, server: ForkServerClient
) -> None:
    def seven() -> object:
        return run.Call(method, int, ("7",), timeout=60, server=server).run()

    assert seven() == 7  # the server was started
    told = "no process could be started for int .*Too many open files|no file descriptor left"
    with descriptors_left(0), pytest.raises(ChildError, match=told):
        seven()
    assert seven() == 7


def test_what_handles_a_signal_while_a_child_is_started_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alarm(*_: object, **__: object) -> NoReturn:
        raise TimeoutError("the user's own limit")

    monkeypatch.setattr(launch, "start_fork", alarm)
    with pytest.raises(TimeoutError, match="own limit"):
        run.Call("fork", int, timeout=60).run()


def test_deaths_are_told_apart() -> None:
    with pytest.raises(ChildTimeout, match=r"did not end within its time limit of 0\.2 s"):
        run.Call("fork", time.sleep, (50,), timeout=0.2).run()
    with pytest.raises(ChildCrashed, match="SIGABRT") as crashed:
        run.Call("fork", os.abort, timeout=60).run()
    assert "Current thread" in str(crashed.value)
    with pytest.raises(ChildExit, match="exited with status 3"):
        run.Call("fork", os._exit, (3,), timeout=60).run()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"method": "thread", "timeout": 1.0}, "'thread' is no start method"),
        ({"method": "fork", "timeout": 0.0}, "above 0 seconds"),
        ({"method": "fork", "timeout": float("nan")}, "above 0 seconds"),
        ({"method": "forkserver", "timeout": 1.0}, "needs the server argument"),
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run.Call(fn=int, **kwargs).run()


def test_a_time_limit_that_is_no_number_is_named() -> None:
    wrong: Any = "3"
    with pytest.raises(TypeError, match="timeout='3': a time limit is a number of seconds"):
        run.Call("fork", int, timeout=wrong).run()


@pytest.mark.parametrize("wrong", [None, 3, "os.getpid", [int]])
def test_what_cannot_be_called_is_named_before_a_process_is_started(wrong: Any) -> None:
    with pytest.raises(TypeError, match="is no function"):
        run.Call("fork", wrong, timeout=1.0)


def test_an_end_after_the_result_may_still_be_a_failure() -> None:
    last = messages.Returned(b"", "")
    assert run._failure_of(ending(), last, "f", 1.0) is None
    assert run._failure_of(ending(exitcode=-9, lingered=True), last, "f", 1.0) is None
    late = run._failure_of(ending(exitcode=-6, timed_out=True), last, "f", 1.0)
    assert "f did not end after it gave a result within its time limit of 1 s" in str(late)
    lost = run._failure_of(ending(exitcode=-9, status_lost=exit_status.REAPED), last, "f", 1.0)
    assert "something else in this process has waited for it" in str(lost)
    crashed = run._failure_of(ending(exitcode=-11), last, "f", 1.0)
    assert "after it gave a result" in str(crashed)
    garbage = run._failure_of(ending(malformed="junk"), None, "f", 1.0)
    assert "sent something that is no message: junk" in str(garbage)


def test_what_a_call_says_is_sorted() -> None:
    outcome = run._Outcome()
    warning = messages.CaughtWarning(None, "builtins.UserWarning", "text", "f.py", 1, None)
    assert outcome.take(messages.CaughtWarnings([vars(warning)]), []) is supervision.Said.MORE
    assert outcome.take(messages.Returned(b"", "1"), []) is supervision.Said.LEAVING
    nothing = os.open(os.devnull, os.O_RDONLY)
    assert outcome.take(messages.Done(), [nothing]) is supervision.Said.DONE
    assert outcome.last == messages.Returned(b"", "1")
    assert outcome.warnings == [warning]
    with pytest.raises(frames.FrameError, match="no messages of kind 'over'"):
        outcome.take(messages.TestOver(last=True), [])
    with pytest.warns(UserWarning, match="text"):
        run._show_warnings(outcome.warnings)


RAISED = messages.Raised(repr="repr", type="a.B", traceback="lines", why="no reason")


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (messages.Returned(None, "<obj>", "TypeError: no"), ChildError, "does not pickle"),
        (messages.Returned(b"junk", "<obj>"), ChildError, "cannot be read here"),
        (messages.Exited(3, "lines"), ChildExit, r"called sys.exit\(3\)"),
        (messages.NotLoaded("lines"), ChildError, "could not load f"),
        (messages.InternalError("lines"), ChildError, "could not run f"),
        (RAISED, ChildError, "raised a.B, which cannot be sent back"),
        (messages.Raised("", "", "", pickled=b"junk"), ChildError, "cannot be sent back"),
        (messages.Raised("", "", "", pickled=pickle.dumps(OSError("x"))), OSError, "x"),
    ],
)
def test_what_is_no_result_is_raised(
    message: messages.Message, kind: type[BaseException], words: str
) -> None:
    with pytest.raises(kind, match=words) as raised:
        run._unpack(message, "f")
    if not isinstance(message, messages.Returned):
        assert isinstance(raised.value.__cause__, RemoteTraceback)


def test_outcomes_of_pytest_are_raised_as_such() -> None:
    parts = pickle.dumps(((), {"msg": "not today"}, {}))
    message = messages.Raised("", "", "", parts=parts, outcome=pytest.skip.Exception.__name__)
    with pytest.raises(pytest.skip.Exception):
        run._unpack(message, "f")


def test_a_session_has_one_server_and_one_caretaker_that_end_with_it() -> None:
    cleanups: list[Any] = []

    class Config:
        stash = pytest.Stash()

        def add_cleanup(self, function: Any) -> None:
            cleanups.append(function)

    config: Any = Config()
    assert run.server_of(config) is run.server_of(config)
    assert cleanups == [run.server_of(config).close]
    assert run.runner(config, "fork")(int, "5") == 5
    caretaker = run.caretaker_of(config)
    assert caretaker.pid is not None
    assert cleanups.pop() == caretaker.close
    caretaker.close()
    assert is_gone(caretaker.pid)
