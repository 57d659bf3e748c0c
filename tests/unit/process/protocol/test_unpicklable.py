"""Tests of where the part is that has no pickle."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle
import pytest

from pytest_cudafork.process.protocol import unpicklable

LOCK = threading.Lock()
CAUSE = "TypeError: cannot pickle '_thread.lock' object"


class Holder:
    """What pickle takes apart by its attributes."""

    def __init__(self, held: object, *more: object) -> None:
        self.more = more
        self.held = held

    def method(self) -> object:
        return self.held


class Own:
    """What says itself how it is pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise ValueError("not me")


class Hidden(Mapping[str, object]):
    """A mapping that cannot be walked through."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getitem__(self, key: str) -> object:
        raise KeyError(key)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no walk")


def uses_global() -> object:
    return LOCK


def function_with(value: object) -> Callable[..., object]:
    def function() -> object:
        return value

    return function


def with_default(value: object) -> Callable[..., object]:
    def function(given: object = value, *, named: object = 1) -> object:
        return given, named

    return function


def reason(value: object) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever the value's code raises
        cloudpickle.dumps(value)
    assert isinstance(caught.value, Exception)
    return unpicklable.reason(caught.value, value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, ""),
        ({"a": 1, "locks": [0, (LOCK,)]}, "['locks'][1][0]"),
        ({LOCK}, "an element"),
        (types.MappingProxyType({"a": LOCK}), "['a']"),
        (Holder(Holder(LOCK), 1, "x"), ".held.held"),
        (Holder(1, {"x": LOCK}), ".more[0]['x']"),
        (Holder(LOCK).method, ".__self__.held"),
        (functools.partial(print, 1, LOCK), ".args[1]"),
        (functools.partial(print, file=LOCK), ".keywords['file']"),
        (function_with({"a": LOCK}), "variable 'value'['a']"),
        (with_default(LOCK), ".__defaults__[0]"),
    ],
)
def test_the_part_is_named_by_the_way_to_it(value: object, path: str) -> None:
    told = reason(value)
    if not isinstance(value, types.MappingProxyType):  # it has no pickle whatever it holds
        assert told.startswith(CAUSE)
    assert told.endswith(f" (found at {path})" if path else "object")


def test_a_global_of_a_function_that_goes_by_value_is_named() -> None:
    by_value = types.FunctionType(uses_global.__code__, {"LOCK": LOCK, "__name__": "__main__"})
    assert reason(by_value) == f"{CAUSE} (found at global 'LOCK')"


def test_a_part_that_pickles_itself_is_not_looked_into() -> None:
    assert reason([Own()]) == "ValueError: not me (found at [0])"


def test_what_cannot_be_walked_through_is_told_as_a_whole() -> None:
    assert reason({"a": Hidden()}) == f"{CAUSE} (found at ['a'])"


def test_what_holds_itself_is_looked_into_once() -> None:
    value: list[object] = [LOCK]
    value.insert(0, value)
    assert reason(value) == f"{CAUSE} (found at [1])"


def test_a_variable_without_a_value_is_passed_over() -> None:
    def function() -> object:
        return later, lock

    lock = LOCK
    assert reason(function) == f"{CAUSE} (found at variable 'lock')"
    later = 1


def test_an_error_that_cannot_say_itself_is_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "str() failed>" in unpicklable.reason(Mute(), 1)
