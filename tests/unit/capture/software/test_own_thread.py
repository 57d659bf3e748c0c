"""A name stands for something else in one thread, and for a while."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from pytest_cudafork.capture.software.own_thread import replace_here
from pytest_cudafork.observe.base.undo import UndoStack


class Kind:
    """A class that is replaced."""


def _in_a_thread(call: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_this_thread_calls_what_stands_there_and_others_the_original() -> None:
    owner = SimpleNamespace(double=lambda number: 2 * number)
    with UndoStack() as undo:
        replace_here(undo, owner, "double", lambda original, number: original(number) + 1)
        assert owner.double(2) == 5
        assert _in_a_thread(lambda: owner.double(2)) == 4
        assert owner.double.__wrapped__(2) == 4
    assert owner.double(2) == 4


def test_a_class_stays_one_that_isinstance_takes() -> None:
    owner, one = SimpleNamespace(Kind=Kind), Kind()
    with UndoStack() as undo:
        replace_here(undo, owner, "Kind", lambda original, *args: args)
        assert isinstance(one, owner.Kind)
        assert not isinstance(1, owner.Kind)
        assert owner.Kind(1, 2) == (1, 2)
        assert isinstance(_in_a_thread(lambda: owner.Kind()), Kind)
    assert owner.Kind is Kind
