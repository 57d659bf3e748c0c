"""What multiprocessing starts is told with its method, and everything goes on as before."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing import process as process_module
from typing import Any

import pytest

from pytest_cudafork.observe.base.process_starts import follow

Told = list[tuple[str, int]]


class Starting(multiprocessing.Process):
    """A process of the default context whose start starts nothing."""

    @staticmethod
    def _Popen(process: Any) -> Any:  # multiprocessing's name
        raise NotImplementedError


@pytest.fixture
def told() -> Iterator[tuple[Told, Told]]:
    """Follow, and return the methods that were used and those that were chosen, with lines."""
    started: Told = []
    chosen: Told = []
    before = process_module.BaseProcess.start.__code__
    undo = follow(
        lambda method, stack: started.append((method, stack[0][1])),
        lambda method, stack: chosen.append((method, stack[0][1])),
    )
    yield started, chosen
    undo()
    assert process_module.BaseProcess.start.__code__ is before


@pytest.fixture
def default() -> Iterator[None]:
    """Give the default context its method back."""
    before = multiprocessing.get_start_method(allow_none=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def line_of(function: Any, offset: int) -> int:
    """Return a line of a test, counted from its ``def``."""
    return int(function.__code__.co_firstlineno) + offset


def test_a_start_is_told_with_the_method_of_its_context(told: tuple[Told, Told]) -> None:
    for method in multiprocessing.get_all_start_methods():
        context: Any = multiprocessing.get_context(method)
        process = context.Process(target=print)
        process._popen = object()  # it was started already: nothing happens
        with pytest.raises(AssertionError):
            process.start()
    here = test_a_start_is_told_with_the_method_of_its_context
    line = line_of(here, 6)
    methods = multiprocessing.get_all_start_methods()
    assert told[0] == [(method, line) for method in methods]


@pytest.mark.usefixtures("default")
def test_the_default_context_decides_when_it_starts(told: tuple[Told, Told]) -> None:
    multiprocessing.set_start_method("spawn", force=True)
    with pytest.raises(NotImplementedError):
        Starting().start()
    here = test_the_default_context_decides_when_it_starts
    assert told == ([("spawn", line_of(here, 4))], [("spawn", line_of(here, 2))])


@pytest.mark.usefixtures("default")
def test_a_choice_that_fails_is_none_and_one_taken_back_is_empty(told: tuple[Told, Told]) -> None:
    multiprocessing.set_start_method(None, force=True)
    with pytest.raises(ValueError, match="cannot find context"):
        multiprocessing.set_start_method("thread", force=True)
    assert [method for method, _ in told[1]] == [""]


def test_what_is_no_process_is_not_told(told: tuple[Told, Told]) -> None:
    with pytest.raises(AttributeError):
        process_module.BaseProcess.start(object())  # type: ignore[arg-type]
    assert len(told[0]) <= 1
