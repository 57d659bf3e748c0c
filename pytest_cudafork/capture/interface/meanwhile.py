"""Variables of contexts and attributes of objects that have another value for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def variable_set(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let a variable that has a default have this value, for the length of a ``with``."""
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)  # a fixture may end in another context than it began in


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, value: object) -> Iterator[None]:
    """Let an attribute of an object have this value, for the length of a ``with``."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
