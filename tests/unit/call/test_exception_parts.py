"""Tests of exceptions that are taken apart, and put together without their ``__init__``."""

from __future__ import annotations

import builtins
import pickle
from typing import Any

import pytest

from pytest_cudafork.call.exception_parts import dump_parts, rebuilt

BaseGroup: Any = getattr(builtins, "BaseExceptionGroup", None)
Group: Any = getattr(builtins, "ExceptionGroup", None)


class OddError(Exception):
    """Its ``__init__`` does not take its ``args``."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)
        self.one = one


class WrongError(Exception):
    """Its pickle is of something else."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return ValueError, ("another",)


def there_and_back(error: BaseException) -> Any:
    made = rebuilt(*pickle.loads(dump_parts(error)))
    assert type(made) is type(error)
    return made


def test_an_exception_is_rebuilt_of_its_parts() -> None:
    error = OddError(1, 2)
    error.__dict__["why"] = "because"
    made = there_and_back(error)
    assert (made.args, made.__dict__) == ((3,), {"one": 1, "why": "because"})


@pytest.mark.skipif(Group is None, reason="exception groups came with Python 3.11")
def test_those_inside_of_others_are_taken_apart_where_that_is_needed() -> None:
    missing = FileNotFoundError(2, "no such file", "it.txt")
    group = BaseGroup("group", [missing, OddError(1, 2), KeyboardInterrupt()])
    outer = Group("outer", [ValueError(OddError(3, 4)), WrongError("this")])
    made = there_and_back(BaseGroup("all", [group, outer]))
    (lost, odd, interrupt), (value, wrong) = (one.exceptions for one in made.exceptions)
    assert (type(lost), lost.filename) == (FileNotFoundError, "it.txt")
    assert (type(odd), odd.args, odd.one) == (OddError, (3,), 1)
    assert type(interrupt) is KeyboardInterrupt
    assert type(value.args[0]) is OddError
    assert (type(wrong), wrong.args) == (WrongError, ("this",))
