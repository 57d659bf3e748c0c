"""Puts the Python objects of a state back to an earlier moment: all of them, or none."""

from __future__ import annotations

import array
import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_cudafork.capture.state.state_tree import Kind, Node, is_array


class Held:
    """What each mutable object of a state referred to at one moment. Tensors are left alone."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._objects: dict[int, tuple[Any, list[Callable[[], None]]]] = {}
        for node in nodes:
            if node.kind in (Kind.MUTABLE, Kind.MODULE):
                self._objects[id(node.value)] = node.value, list(_restorers(node.value))

    def restore(self, ids: Iterable[int]) -> None:
        """Let those of these objects refer to what they did."""
        for key in ids:
            for restore in self._objects.get(key, (None, []))[1]:
                restore()


@contextmanager
def as_before(held: Held, nodes: Iterable[Node]) -> Iterator[None]:
    """Put objects back for a while; afterwards they are again as they are now."""
    present = {id(node.value): node for node in nodes}
    now = Held(present.values())
    held.restore(present)
    try:
        yield
    finally:
        now.restore(present)


def _restorers(value: Any) -> Iterator[Callable[[], None]]:
    """Yield what puts back the items and the attributes of one object."""
    if isinstance(value, dict):
        yield _dict(value)
    elif isinstance(value, list | bytearray | array.array):
        yield _sequence(value)
    elif isinstance(value, set):
        yield _set(value)
    elif isinstance(value, collections.deque):
        yield _deque(value)
    elif is_array(value):
        yield _array(value)
    if type(value) not in _WITHOUT_ATTRIBUTES and not is_array(value):
        yield from _attributes(value)


_WITHOUT_ATTRIBUTES = (dict, list, set, bytearray, array.array, collections.deque)


def _dict(value: dict[Any, Any]) -> Callable[[], None]:
    kept = list(value.items())
    cls: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict

    def restore() -> None:
        cls.clear(value)
        for key, below in kept:
            cls.__setitem__(value, key, below)

    return restore


def _sequence(value: Any) -> Callable[[], None]:
    kept = value[:]

    def restore() -> None:
        value[:] = kept

    return restore


def _set(value: set[Any]) -> Callable[[], None]:
    kept = set(value)

    def restore() -> None:
        set.clear(value)
        set.update(value, kept)

    return restore


def _deque(value: collections.deque[Any]) -> Callable[[], None]:
    kept = list(value)

    def restore() -> None:
        collections.deque.clear(value)
        collections.deque.extend(value, kept)

    return restore


def _array(value: Any) -> Callable[[], None]:
    kept = value.copy()

    def restore() -> None:
        if value.shape == kept.shape and value.flags.writeable:
            value[...] = kept

    return restore


def _attributes(value: Any) -> Iterator[Callable[[], None]]:
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        yield _dict(own)
        for table in ("_parameters", "_buffers", "_modules"):  # of a module
            if isinstance(own.get(table), dict):
                yield _dict(own[table])
    kept: list[tuple[types.MemberDescriptorType, Any]] = []
    for cls in type(value).__mro__:
        for slot in vars(cls).values() if cls.__module__ != "builtins" else ():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    kept.append((slot, slot.__get__(value)))
                except AttributeError:
                    kept.append((slot, _UNSET))

    def restore() -> None:
        for slot, below in kept:
            with contextlib.suppress(AttributeError, TypeError):  # read only, or unset already
                slot.__delete__(value) if below is _UNSET else slot.__set__(value, below)

    if kept:
        yield restore


_UNSET = object()
