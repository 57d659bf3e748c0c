"""Puts the Python objects of a state back to an earlier moment: all of them, or none."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_cudafork.capture.interface.weak_tensors import WeakTensor
from pytest_cudafork.capture.state.carried import closure_of
from pytest_cudafork.capture.state.state_tree import (
    MODULE_TABLES,
    Kind,
    Node,
    TooManyObjectsError,
    is_array,
    is_plain,
    slots_of,
    walk,
)


class Held:
    """What each mutable object of a state referred to at one moment. Tensors are left alone."""

    def __init__(self, nodes: Iterable[Node], *, weakly: bool = False) -> None:
        """Note it; ``weakly``: without keeping tensors alive, which are None once they are gone.

        A graph that outlives memory which it uses would not be found otherwise.
        """
        refer = _weak if weakly else _strong
        self._objects: dict[int, tuple[Any, list[Callable[[], None]]]] = {}
        for node in mutable(nodes):
            self._objects[id(node.value)] = node.value, list(_restorers(node.value, refer))

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


def mutable(nodes: Iterable[Node]) -> list[Node]:
    """Return those of objects that can be put back; none of them is a tensor."""
    return [node for node in nodes if node.kind in (Kind.MUTABLE, Kind.MODULE)]


class Carried:
    """The objects that a callable carries, as they are at one moment."""

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        nodes: list[Node] = []
        with contextlib.suppress(TooManyObjectsError):
            nodes = _carried_nodes(fn)
        self._contents = {node.path: _contents(node) for node in nodes}
        self._nodes = mutable(nodes)
        self._held = Held(self._nodes, weakly=True)

    def has_changed(self) -> bool:
        """Whether it carries another object or value anywhere; contents of tensors do not count."""
        then = self._contents
        try:
            now = {node.path: _contents(node) for node in _carried_nodes(self._fn)}
        except TooManyObjectsError:
            return False
        if not then or then.keys() != now.keys():
            return bool(then)
        return any(not _is_same(then[path], value) for path, value in now.items())

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Put the objects back for a while."""
        with as_before(self._held, self._nodes):
            yield


def _carried_nodes(fn: Any) -> list[Node]:
    found: list[Node] = []
    for name, value in closure_of(fn).items():
        skip = [node.value for node in found if node.kind is not Kind.VALUE]
        nodes = walk(value, name, skip=skip)
        # The list of defaults is made for each question.
        found += [node for node in nodes if node.path.rpartition(".")[2] != "defaults"]
    return found


def _contents(node: Node) -> Any:
    """Return what stands for a node: a value, a copy of a container of such, or an identity."""
    value = node.value
    if isinstance(value, list | dict | set) and is_plain(value) and len(value) <= _MOST_ITEMS:
        return copy.copy(value)
    return value if isinstance(value, _COMPARED) else _Same(value)


class _Same:
    """Stands for an object, and keeps it alive only where it cannot be referred to weakly.

    Its address alone would not do: the next object may get it once this one is gone.
    """

    def __init__(self, value: Any) -> None:
        try:
            self._get: Callable[[], Any] = (
                WeakTensor(value) if isinstance(value, torch.Tensor) else weakref.ref(value)
            )
        except TypeError:
            self._get = _strong(value)

    def __eq__(self, other: object) -> bool:
        value = self._get()
        return isinstance(other, _Same) and value is not None and value is other._get()

    __hash__ = None  # type: ignore[assignment]


_COMPARED = (bool, int, float, complex, str, bytes, type(None))


_MOST_ITEMS = 1000


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one is other or bool(one == other))


_Refer = Callable[[Any], Callable[[], Any]]
"""Makes of an object what gives it back."""


def _strong(below: Any) -> Callable[[], Any]:
    return lambda: below


def _weak(below: Any) -> Callable[[], Any]:
    return WeakTensor(below) if isinstance(below, torch.Tensor) else _strong(below)


def _restorers(value: Any, refer: _Refer) -> Iterator[Callable[[], None]]:
    """Yield what puts back the items and the attributes of one object."""
    if isinstance(value, dict):
        yield _dict(value, refer)
    elif isinstance(value, list | bytearray | array.array):
        yield _sequence(value, refer)
    elif isinstance(value, set):
        yield _set(value)
    elif isinstance(value, collections.deque):
        yield _deque(value, refer)
    elif is_array(value):
        yield _array(value)
    if type(value) not in _WITHOUT_ATTRIBUTES and not is_array(value):
        yield from _attributes(value, refer)


_WITHOUT_ATTRIBUTES = (dict, list, set, bytearray, array.array, collections.deque)


def _dict(value: dict[Any, Any], refer: _Refer) -> Callable[[], None]:
    kept = [(key, refer(below)) for key, below in value.items()]
    cls: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict

    def restore() -> None:
        cls.clear(value)
        for key, below in kept:
            cls.__setitem__(value, key, below())

    return restore


def _sequence(value: Any, refer: _Refer) -> Callable[[], None]:
    if not isinstance(value, list):
        numbers = value[:]

        def restore_numbers() -> None:
            value[:] = numbers

        return restore_numbers
    kept = [refer(below) for below in value]

    def restore() -> None:
        value[:] = [below() for below in kept]

    return restore


def _set(value: set[Any]) -> Callable[[], None]:
    kept = set(value)

    def restore() -> None:
        set.clear(value)
        set.update(value, kept)

    return restore


def _deque(value: collections.deque[Any], refer: _Refer) -> Callable[[], None]:
    kept = [refer(below) for below in value]

    def restore() -> None:
        collections.deque.clear(value)
        collections.deque.extend(value, [below() for below in kept])

    return restore


def _array(value: Any) -> Callable[[], None]:
    kept = value.copy()

    def restore() -> None:
        if value.shape == kept.shape and value.flags.writeable:
            value[...] = kept

    return restore


def _attributes(value: Any, refer: _Refer) -> Iterator[Callable[[], None]]:
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        yield _dict(own, refer)
        for table in MODULE_TABLES:
            if isinstance(own.get(table), dict):
                yield _dict(own[table], refer)
    kept: list[tuple[Any, Callable[[], Any] | None]] = []
    for _, slot in slots_of(type(value)):
        try:
            kept.append((slot, refer(slot.__get__(value))))
        except AttributeError:
            kept.append((slot, None))

    def restore() -> None:
        for slot, below in kept:
            with contextlib.suppress(AttributeError, TypeError):  # read only, or unset already
                slot.__delete__(value) if below is None else slot.__set__(value, below())

    if kept:
        yield restore
