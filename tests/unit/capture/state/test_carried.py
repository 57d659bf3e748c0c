"""What a callable carries, also behind wrappers and the functions that it calls by name."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")

from pytest_cudafork.capture.state.carried import closure_of


@dataclass
class Meta:
    """What code carries."""

    scale: int = 1


GLOBAL = Meta()


def helper(x: Any) -> Any:
    return GLOBAL.scale * x


def by_name(x: Any) -> Any:
    return helper(x) + len([x])


def endless(x: Any) -> Any:
    return endless(x) if x else GLOBAL


def wrapped(fn: Any) -> Any:
    """As a decorator that does not say what it wraps."""

    def call(*args: Any) -> Any:
        return fn(*args)

    return call


class Owner:
    """Holds a function, as a wrapper does."""

    def __init__(self, fn: Any = None) -> None:
        self.fn = fn

    def method(self, extra: Any = GLOBAL) -> Any:
        return extra

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)


def test_cells_defaults_self_and_bound_arguments() -> None:
    meta, owner = Meta(), Owner()

    def inner(*_: Any) -> Any:
        return meta

    assert closure_of(inner) == {"meta": meta}
    assert closure_of(owner.method)["self"] is owner
    assert closure_of(owner.method)["defaults"] == [GLOBAL]
    assert closure_of(functools.partial(inner, 1))["args"] == (1,)


def test_global_variables_and_those_of_functions_that_are_called_by_name() -> None:
    assert closure_of(helper) == {"GLOBAL": GLOBAL}
    assert closure_of(by_name) == {"helper.GLOBAL": GLOBAL}
    assert closure_of(endless)["GLOBAL"] is GLOBAL


def test_a_wrapper_hides_nothing() -> None:
    meta = Meta()

    def inner(x: Any) -> Any:
        return x * meta.scale

    for fn, path in (
        (wrapped(inner), "fn.meta"),
        (wrapped(wrapped(inner)), "fn.fn.meta"),
        (wrapped(functools.partial(inner, 1)), "fn.meta"),
        (wrapped(functools.lru_cache(inner)), "fn.meta"),
        (functools.wraps(inner)(lambda x: x), "meta"),
        (Owner(inner), "fn.meta"),
        (wrapped(Owner(inner).method), "fn.self"),
    ):
        assert path in closure_of(fn), path
    assert closure_of(wrapped(inner))["fn.meta"] is meta


def test_the_code_of_libraries_is_not_looked_through() -> None:
    def fn(x: Any) -> Any:
        return functools.reduce(max, [x])

    assert closure_of(wrapped(fn)).keys() == {"fn"}


def test_a_cell_that_is_not_bound_yet_is_left_out() -> None:
    def fn() -> Any:
        return later

    assert closure_of(fn) == {}
    later = 1
    assert closure_of(fn) == {"later": 1}
