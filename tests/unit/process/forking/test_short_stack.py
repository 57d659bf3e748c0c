"""Tests of forks that are made above a short stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from pytest_cudafork.process.forking import short_stack
from pytest_cudafork.process.forking.short_stack import DueFork, Steps, Turn


def _nested(due: DueFork, depth: int) -> Steps[int]:
    if depth:
        return (yield from _nested(due, depth - 1))
    yield due
    if due.error is not None:
        raise due.error
    return due.pid


def _names() -> list[str]:
    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names


def test_a_child_begins_where_the_steps_are_performed_and_its_parent_goes_on() -> None:
    def turns() -> Iterator[Turn]:
        found: list[str] = []
        turn = Turn(lambda: found.extend(_names()))
        yield turn
        shallow = "_nested" not in found and "perform" in found
        broken = Turn(lambda: 1 // 0)
        yield broken
        os._exit(7 if shallow and isinstance(broken.error, ZeroDivisionError) else 8)

    pid = short_stack.perform(_nested(DueFork(turns), 5))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_child_never_comes_back() -> None:
    pid = short_stack.perform(_nested(DueFork(lambda: iter(())), 0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70


def test_what_refuses_a_fork_is_raised_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> int:
        raise RuntimeError("not now")

    monkeypatch.setattr(short_stack, "fork", refuse)
    with pytest.raises(RuntimeError, match="not now") as caught:
        short_stack.perform(_nested(DueFork(lambda: iter(())), 2))
    assert "_nested" in [entry.name for entry in caught.traceback]


def test_turns_are_taken_in_their_order_whatever_they_raise() -> None:
    done: list[object] = []

    def turns() -> Iterator[Turn]:
        for number in (1, 0, 2):
            turn = Turn(lambda number=number: done.append(4 // number))  # type: ignore[misc]
            yield turn
            done.append(turn.error and type(turn.error))

    short_stack.take_turns(turns())
    assert done == [4, None, ZeroDivisionError, 2, None]
