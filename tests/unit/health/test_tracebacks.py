"""Tests of letting go of what the frames of a failed test hold."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_cudafork.health.tracebacks import release


class _Tensor:
    """What must not be kept."""


def failing(make: Callable[[Callable[[], Any]], None]) -> tuple[BaseException, list[Any]]:
    """Return the error of ``make`` and weak references to the tensors that it has made."""
    made: list[Any] = []

    def tensor() -> _Tensor:
        one = _Tensor()
        made.append(weakref.ref(one))
        return one

    try:
        make(tensor)
    except BaseException as error:
        return error, made
    raise AssertionError("it did not fail")


def plain(tensor: Callable[[], Any]) -> None:
    """Fail with a tensor."""
    kept = tensor()
    raise ValueError(bool(kept))


def with_cause(tensor: Callable[[], Any]) -> None:
    """Fail with a tensor, because of another failure with one."""
    try:
        plain(tensor)
    except ValueError as error:
        held = tensor()
        raise RuntimeError(bool(held)) from error


def while_handling(tensor: Callable[[], Any]) -> None:
    """Fail with a tensor while another failure with one is handled."""
    try:
        plain(tensor)
    except ValueError:
        plain(tensor)


@pytest.mark.parametrize("make", [plain, with_cause, while_handling])
def test_tensors_of_an_error_and_of_its_causes_are_let_go(
    make: Callable[[Callable[[], Any]], None],
) -> None:
    error, made = failing(make)
    frame: Any = error.__traceback__
    while frame is not None:  # pytest looks at them, which makes a copy of the variables
        _ = frame.tb_frame.f_locals
        frame = frame.tb_next
    assert any(one() is not None for one in made)
    release([error])
    assert [one() for one in made] == [None] * len(made)
    assert error.__traceback__ is not None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions came with Python 3.11")
def test_the_members_of_a_group_are_let_go() -> None:
    inner, made = failing(plain)
    group: Any = vars(__import__("builtins"))["ExceptionGroup"]("several", [inner])
    release([group])
    assert made[0]() is None


def test_a_frame_that_still_runs_and_a_generator_that_waits_keep_their_variables() -> None:
    caught: list[BaseException] = []

    def waiting() -> Iterator[int]:
        value = 41
        try:
            raise KeyError(value)
        except KeyError as error:
            caught.append(error)
        yield value
        yield value + 1

    generator = waiting()
    assert next(generator) == 41
    here = _Tensor()
    try:
        raise ValueError
    except ValueError as error:
        caught.append(error)
    release(caught)
    assert isinstance(here, _Tensor)
    assert next(generator) == 42


def test_errors_that_name_each_other_end() -> None:
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first
    release([first])
