"""Tests of calling a function in a child and sending its outcome, done in this process."""

from __future__ import annotations

import pickle
import socket
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

from pytest_cudafork.call import in_child
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.protocol import frames, messages

COOKIE = bytes(16)


class Caller:
    """A parent whose child is this process."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.channel = Channel(theirs, COOKIE)
        self.theirs = theirs

    def said(self) -> list[messages.Message]:
        """Return all messages so far."""
        self.sock.setblocking(False)
        plain = frames.Decoder(COOKIE).feed(self.sock.recv(1 << 20))
        return [messages.decode(one) for one in plain]

    def outcome_of(self, call: Callable[[], Any]) -> list[messages.Message]:
        """Call a function as a child does."""
        assert in_child._run(self.channel, call) == 0
        return self.said()


@pytest.fixture
def caller() -> Iterator[Caller]:
    made = Caller()
    yield made
    made.sock.close()
    made.theirs.close()


def test_a_result_comes_with_its_repr(caller: Caller) -> None:
    (outcome,) = caller.outcome_of(lambda: {"x": 1})
    assert isinstance(outcome, messages.Returned)
    assert (pickle.loads(outcome.pickled or b""), outcome.repr) == ({"x": 1}, "{'x': 1}")


def test_a_result_that_does_not_pickle_is_told_by_its_repr(caller: Caller) -> None:
    (outcome,) = caller.outcome_of(lambda: caller.sock)
    assert isinstance(outcome, messages.Returned)
    assert outcome.pickled is None
    assert "cannot pickle" in outcome.why


class BrokenRepr:
    """Its repr raises, and is long elsewhere."""

    def __repr__(self) -> str:
        raise ValueError


def test_a_repr_is_short_and_never_fails() -> None:
    assert in_child.short_repr(BrokenRepr()).endswith("object whose repr raises ValueError>")
    assert len(in_child.short_repr("x" * 5000)) == 2003


class OddError(Exception):
    """Its ``__init__`` does not take its ``args``."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)
        self.one = one


@pytest.mark.parametrize("error", [ValueError("this"), OddError(1, 2)])
def test_an_exception_comes_with_its_pickle(caller: Caller, error: Exception) -> None:
    def fails() -> None:
        raise error

    (outcome,) = caller.outcome_of(fails)
    assert isinstance(outcome, messages.Raised)
    assert outcome.type.endswith(type(error).__qualname__)
    assert "in fails" in outcome.traceback
    made = pickle.loads(outcome.pickled or b"")
    assert (type(made), made.args) == (type(error), error.args)
    assert vars(made) == vars(error)


def test_outcomes_of_pytest_are_told_by_name(caller: Caller) -> None:
    (outcome,) = caller.outcome_of(lambda: pytest.skip("not today"))
    assert isinstance(outcome, messages.Raised)
    assert outcome.outcome == pytest.skip.Exception.__name__
    assert pickle.loads(outcome.parts or b"")[1]["msg"] == "not today"


def test_an_exception_whose_text_fails_is_still_told(caller: Caller) -> None:
    class UntoldError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fails() -> None:
        raise UntoldError

    (outcome,) = caller.outcome_of(fails)
    assert isinstance(outcome, messages.Raised)


@pytest.mark.parametrize(("code", "sent"), [(3, 3), (None, None), ("text", "text"), ([1], "[1]")])
def test_sys_exit_is_told_with_its_code(caller: Caller, code: object, sent: object) -> None:
    def exits() -> None:
        raise SystemExit(code)

    (outcome,) = caller.outcome_of(exits)
    assert isinstance(outcome, messages.Exited)
    assert outcome.code == sent


def test_warnings_go_before_the_outcome(caller: Caller) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an earlier test's garbage may tell of itself
        warnings.simplefilter("always", UserWarning)
        told, outcome = caller.outcome_of(lambda: warnings.warn("mind this", stacklevel=1))
    assert isinstance(told, messages.CaughtWarnings)
    assert [one.text for one in told.each()] == ["mind this"]
    assert isinstance(outcome, messages.Returned)


def test_a_pickled_call_has_its_own_filters(caller: Caller) -> None:
    filters = cloudpickle.dumps([cloudpickle.dumps(("ignore", None, UserWarning, None, 0))])
    data = {"filters": filters, "payload": cloudpickle.dumps((max, (1, 2), {"key": None}))}
    with warnings.catch_warnings():
        assert in_child.run_pickled(child.Task(data, -1, caller.channel)) == 0
        assert warnings.filters[0][0] == "ignore"
    (outcome,) = caller.said()
    assert isinstance(outcome, messages.Returned)
    assert outcome.repr == "2"


def test_a_call_that_cannot_be_loaded_is_told(caller: Caller) -> None:
    data = {"filters": cloudpickle.dumps([]), "payload": b"junk"}
    assert in_child.run_pickled(child.Task(data, -1, caller.channel)) == 0
    (outcome,) = caller.said()
    assert isinstance(outcome, messages.NotLoaded)


@pytest.mark.parametrize("broken", [False, True])
def test_a_forked_child_calls_and_ends(
    broken: bool,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class LeftError(BaseException):
        pass

    def leave(status: int, channel: Channel) -> None:
        raise LeftError(status)

    def prepare(stacks_fd: int) -> None:
        if broken:
            raise OSError("nothing works")

    monkeypatch.setattr(child, "forget_parent_exit_work", lambda: None)
    monkeypatch.setattr(child, "prepare", prepare)
    monkeypatch.setattr(child, "adopt_streams", lambda: None)
    monkeypatch.setattr(child, "leave", leave)
    with pytest.raises(LeftError, match=str(EXIT_LOST if broken else 0)):
        in_child.run_forked(caller.channel, -1, lambda: 5)
    if broken:
        assert "nothing works" in capsys.readouterr().err
    else:
        assert [type(one) for one in caller.said()] == [messages.Returned]
