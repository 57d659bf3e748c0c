"""The error of a refused fork is followed to where it ends."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import pickle
import sys
import threading
import unittest
from types import FrameType, TracebackType
from typing import Any

import pytest

from pytest_cudafork.check import caught, refusal
from pytest_cudafork.check import watch as watches
from pytest_cudafork.check.refusal import Refusals, RefusedFork, refusals_shown_with
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.base.records import file_of_stderr


class Notes:
    """What was noted, in order: the refusal, whether by its name, and the function."""

    def __init__(self) -> None:
        self.all: list[tuple[str, bool, str]] = []
        self.printed: list[str | None] = []

    def note_caught(self, fork: str, **place: Any) -> None:
        """Keep a note."""
        self.printed.append(place.get("printed"))
        self.all.append((fork, place["by_name"], place["function"].rpartition(".")[2]))


@pytest.fixture
def notes() -> Notes:
    """No notes so far."""
    return Notes()


@pytest.fixture
def refusals(notes: Notes) -> Refusals:
    """A process in which no fork was refused so far."""
    return Refusals(notes)


def test_it_looks_like_what_users_know(refusals: Refusals) -> None:
    error = refusals.error("why", "1")
    assert isinstance(error, CudaForkError)
    assert f"{type(error).__module__}.{type(error).__qualname__}" == "pytest_cudafork.CudaForkError"
    assert str(error) == "why"


def test_an_error_that_passes_through_has_not_ended_there(notes: Notes, refusals: Refusals) -> None:
    def passes() -> None:
        try:
            raise refusals.error("why", "1")
        except Exception as error:
            refusals.settle(passing=error)
            raise

    with contextlib.suppress(CudaForkError):
        passes()
    assert [(fork, by_name) for fork, by_name, _ in notes.all] == [("1", True)]


def test_an_error_that_is_dropped_says_where_it_was_caught(
    notes: Notes, refusals: Refusals
) -> None:
    def by_name() -> None:
        with contextlib.suppress(CudaForkError):
            raise refusals.error("why", "1")

    def by_base() -> None:
        with contextlib.suppress(Exception):
            raise refusals.error("why", "2")

    by_name()
    by_base()
    gc.collect()
    assert notes.all == [("1", True, "by_name"), ("2", False, "by_base")]


def test_an_error_that_is_held_is_asked_and_not_told_twice(
    notes: Notes, refusals: Refusals
) -> None:
    with pytest.raises(CudaForkError) as held:
        raise refusals.error("why", "1")
    assert not notes.all
    refusals.settle()
    refusals.settle()
    assert [(fork, by_name) for fork, by_name, _ in notes.all] == [("1", True)]
    del held
    gc.collect()
    refusals.settle()
    assert len(notes.all) == 1


def test_no_refusal_is_forgotten_where_another_thread_is_refused_at_any_moment(
    notes: Notes, refusals: Refusals
) -> None:
    numbers = itertools.count()
    held: list[CudaForkError] = []

    def refuse() -> None:
        held.append(refusals.error("why", str(next(numbers))))

    def interrupt(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename == refusal.__file__:
            other = threading.Thread(target=refuse)
            other.start()
            other.join()

    refuse()
    sys.setprofile(interrupt)
    try:
        refuse()
    finally:
        sys.setprofile(None)
    for error in held:
        with contextlib.suppress(CudaForkError):
            raise error
    refusals.settle()
    assert len(held) > 2
    assert sorted(fork for fork, _, _ in notes.all) == sorted(map(str, range(len(held))))


def test_an_error_that_has_not_gone_on_is_not_looked_for_again(
    notes: Notes, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = caught.caught_at

    def counted(traceback: TracebackType, kind: type[BaseException]) -> caught.Caught:
        looks.append(traceback.tb_lineno)
        return look(traceback, kind)

    monkeypatch.setattr(caught, "caught_at", counted)
    held = None
    try:
        raise refusals.error("why", "1")
    except Exception as error:
        held = error
    for _ in range(3):
        refusals.settle()
    assert len(looks) == 1
    with contextlib.suppress(CudaForkError):
        raise held
    refusals.settle()
    assert len(looks) == 2
    assert [note[:2] for note in notes.all] == [("1", False), ("1", True)]


def test_an_error_that_is_raised_on_with_its_traceback_was_not_caught(
    notes: Notes, refusals: Refusals
) -> None:
    """As pluggy does in an old-style wrapper, and a future."""

    def raises_on() -> None:
        try:
            raise refusals.error("why", "1")
        except Exception as error:
            raise error.with_traceback(error.__traceback__)  # noqa: B904

    with pytest.raises(CudaForkError):
        raises_on()
    gc.collect()
    assert [note[:2] for note in notes.all] == [("1", True)]


def test_it_is_seen_before_its_traceback_is_taken(notes: Notes, refusals: Refusals) -> None:
    with unittest.TestCase().assertRaises(CudaForkError) as caught:  # noqa: PT027
        raise refusals.error("why", "1")
    assert caught.exception.__traceback__ is None
    assert notes.all[-1][:2] == ("1", True)


def test_an_error_that_was_never_raised_is_not_known_to_be_caught(
    notes: Notes, refusals: Refusals
) -> None:
    assert refusals.error("why", "1").settle() is None
    gc.collect()
    assert not notes.all


def test_where_a_finalizer_interrupts_a_parse_the_look_is_put_off(
    notes: Notes, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caught, "may_look", lambda: False)
    with contextlib.suppress(CudaForkError):
        raise refusals.error("why", "1")
    gc.collect()
    assert not notes.all
    refusals.settle()
    assert [note[:2] for note in notes.all] == [("1", True)]


def test_a_forked_child_says_nothing_of_its_copies(notes: Notes, refusals: Refusals) -> None:
    with contextlib.suppress(CudaForkError):
        error = refusals.error("why", "1")
        error._pid = os.getpid() + 1
        raise error
    del error
    gc.collect()
    assert not notes.all


def test_a_copy_that_travels_is_followed_where_it_arrives(
    refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(refusals.error("why", "1"))
    monkeypatch.setattr(watches, "_nested", [])
    plain = pickle.loads(data)
    assert type(plain) is CudaForkError
    there = Notes()
    watch: Any = type("Watch", (), {"refusals": Refusals(there)})()
    monkeypatch.setattr(watches, "_nested", [watch])
    copy = pickle.loads(data)
    assert (str(plain), str(copy), copy.fork_id) == ("why", "why", "1")
    with contextlib.suppress(CudaForkError):
        raise copy
    del copy
    gc.collect()
    assert [note[:2] for note in there.all] == [("1", True)]


def test_a_failure_shows_the_refusals_of_its_chain(refusals: Refusals) -> None:
    def chained(error: BaseException, **links: Any) -> BaseException:
        for name, value in links.items():
            setattr(error, name, value)
        return error

    one: RefusedFork = refusals.error("why", "1")
    loop = ValueError()
    loop.__context__ = loop
    cases: dict[str, tuple[BaseException | None, list[RefusedFork]]] = {
        "itself": (one, [one]),
        "cause": (chained(ValueError(), __cause__=one), [one]),
        "context": (chained(ValueError(), __context__=one), [one]),
        "from None": (chained(ValueError(), __context__=one, __suppress_context__=True), []),
        "group": (chained(ValueError(), exceptions=(KeyError(), one)), [one]),
        "message alone": (chained(pytest.fail.Exception(pytrace=False), __context__=one), []),
        "circle": (loop, []),
        "nothing": (None, []),
    }
    for name, (error, expected) in cases.items():
        assert list(refusals_shown_with(error)) == expected, name


@pytest.mark.parametrize("case", ["plain", "caught", "function", "hook", "redirected", "closed"])
def test_an_error_is_printed_where_python_ends_the_process_of_it(
    case: str, notes: Notes, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    stderr = None if case == "closed" else sys.__stderr__
    monkeypatch.setattr(sys, "__stderr__", stderr)
    monkeypatch.setattr(sys, "stderr", io.StringIO() if case == "redirected" else stderr)
    if case == "hook":
        monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    line, function = 3 if case == "caught" else 0, "main" if case == "function" else "<module>"
    end = caught.Caught("/w/prog.py", line, function, by_name=False)
    monkeypatch.setattr(caught, "caught_at", lambda *_: end)
    error = refusals.error("why", "1")
    with contextlib.suppress(CudaForkError):
        raise error
    error.settle()
    assert notes.printed == [file_of_stderr() if case == "plain" else None]
