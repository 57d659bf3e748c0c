"""Walks the objects below a state: each once, with the path a reader would write."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import functools
import logging
import numbers
import os
import types
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

MOST_OBJECTS = 100_000
"""Beyond this many objects a state is not walked; containers of plain values count as one."""


class Kind(enum.Enum):
    """What an object is to a check."""

    TENSOR = "tensor"
    MUTABLE = "mutable"  # a container or object whose contents can change
    FIXED = "fixed"  # a tuple, a frozen dataclass: contents stay, what they refer to may change
    MODULE = "module"  # an nn.Module: shared by design
    VALUE = "value"  # compared by value
    OPAQUE = "opaque"  # not looked into


class Node(NamedTuple):
    """An object and the first path that leads to it; ``parent`` and ``key`` say where it hangs."""

    path: str
    value: Any
    kind: Kind
    parent: Any = None
    key: Any = None
    attribute: bool = False  # whether key is an attribute of parent, else an item


class TooManyObjectsError(ValueError):
    """A state holds more objects than are walked; Recoverable by leaving a part out."""


_SCALARS = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice, torch.dtype,
    torch.device, torch.layout, torch.memory_format, enum.Enum, numbers.Number, os.PathLike,
)  # fmt: skip
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_UNWALKED = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    types.GeneratorType, types.CodeType, types.FrameType, weakref.ref, weakref.ProxyType,
    logging.Logger, torch.Generator,
)  # fmt: skip
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset, collections.deque))
_SEQUENCES = (tuple, list, collections.deque)
_SETS = (set, frozenset)
_ARRAYS = (bytearray, array.array)
_COLLECTIONS = (list, set, frozenset, collections.deque)
_FIXED = (tuple, frozenset, types.MappingProxyType, functools.partial)
_MUTABLE = (dict, list, set, collections.deque, *_ARRAYS)
_KINDS: tuple[tuple[Any, Kind], ...] = (
    (torch.Tensor, Kind.TENSOR),
    (_SCALARS, Kind.VALUE),
    (_UNWALKED, Kind.OPAQUE),
    (torch.nn.Module, Kind.MODULE),
    (_FIXED, Kind.FIXED),
    ((*_MUTABLE, torch.optim.Optimizer), Kind.MUTABLE),
)
# Of these are nearly all objects of most states; to find out by ``isinstance`` takes the longest of
# all that is done with an object.
_KNOWN = {
    **dict.fromkeys((*_PLAIN, type(Ellipsis), range, slice, torch.dtype), Kind.VALUE),
    **dict.fromkeys((torch.device, torch.layout, torch.memory_format), Kind.VALUE),
    **dict.fromkeys((torch.Tensor, torch.nn.Parameter), Kind.TENSOR),
    **dict.fromkeys((types.FunctionType, types.BuiltinFunctionType), Kind.OPAQUE),
    **dict.fromkeys((types.MethodType, types.ModuleType, type, torch.Generator), Kind.OPAQUE),
    **dict.fromkeys(_FIXED, Kind.FIXED),
    **dict.fromkeys(_MUTABLE, Kind.MUTABLE),
}
_OPAQUE_HOMES = frozenset(
    ("torch", "triton", "threading", "_thread", "logging", "asyncio", "concurrent", "contextvars",
     "ctypes", "re", "_io", "io", "socket", "subprocess", "unittest", "_pytest", "weakref",
     "multiprocessing", "inspect", "importlib", "tempfile", "pytest_cudafork")
)  # fmt: skip


def walk(
    root: Any, name: str = "state", *, skip: Iterable[Any] = (), plain: bool = True
) -> Iterator[Node]:
    """Yield every object below ``root``, nearer ones first, each once.

    Modules, functions and classes are not walked, nor are the objects in ``skip`` and what hangs
    below them. Without ``plain`` numbers, texts and None are left out where an object has them. The
    time is linear in the number of objects, however deep they are nested.

    Raises:
        TooManyObjectsError: there are more than ``MOST_OBJECTS``.

    """
    seen: dict[int, Any] = {id(value): value for value in skip}
    waiting = collections.deque([Node(name, root, kind_of(root))])
    count = 0
    while waiting:
        node = waiting.popleft()
        if node.kind is not Kind.VALUE:
            if id(node.value) in seen:
                continue
            seen[id(node.value)] = node.value  # kept, so that no other object gets its id
        count += 1
        yield node
        if len(node.path) > _LONG_PATH:
            node = node._replace(path=_shortened(node.path))
        if _has_more_items(node.value, MOST_OBJECTS - count - len(waiting)):
            raise _too_many(name, node)
        for below in children(node, plain) if node.kind is not Kind.VALUE else ():
            waiting.append(below)
            if count + len(waiting) > MOST_OBJECTS:
                raise _too_many(name, node)


def _too_many(name: str, node: Node) -> TooManyObjectsError:
    return TooManyObjectsError(
        f"{name} holds more than {MOST_OBJECTS:,} objects; most hang below {node.path}"
    )


def _has_more_items(value: Any, most: int) -> bool:
    """Whether a container has more items to be walked, told without looking at each of them."""
    return type(value) in _CONTAINERS and len(value) > most and not is_plain(value)


_LONG_PATH = 600
"""Below a longer path the middle is left out, so that deep nesting costs no more than breadth."""


def _shortened(path: str) -> str:
    return f"{path[:200]}...<{zlib.crc32(path.encode('utf-8', 'replace')):08x}>..."


def is_unwalked(value: Any) -> bool:
    """Whether it is a module, a function, a class or the like, which are not walked."""
    return isinstance(value, _UNWALKED)


def kind_of(value: Any) -> Kind:
    """Return what an object is to a check."""
    known = _KNOWN.get(type(value))
    if known is not None:
        return known
    for classes, kind in _KINDS:
        if isinstance(value, classes):
            return kind
    if is_array(value):
        return Kind.MUTABLE
    cls = type(value)
    if cls.__module__.partition(".")[0] in _OPAQUE_HOMES:
        return Kind.OPAQUE
    if _is_frozen(cls):
        return Kind.FIXED
    if _has_fields(value) or isinstance(value, Mapping):
        return Kind.MUTABLE
    return Kind.OPAQUE


def is_array(value: Any) -> bool:
    """Whether it is a numpy array; numpy is not imported for that."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def is_plain(value: Any) -> bool:
    """Whether it is a container of plain values only, which is compared as one value."""
    if isinstance(value, _ARRAYS) or is_array(value):
        return True
    if isinstance(value, _COLLECTIONS) or type(value) is tuple:
        return set(map(type, value)) <= _PLAIN
    if isinstance(value, dict):
        return set(map(type, value)) <= _PLAIN and set(map(type, value.values())) <= _PLAIN
    return False


def children(node: Node, plain: bool = True) -> Iterator[Node]:
    """Yield what hangs directly below an object; nothing below containers of plain values.

    ``plain``: numbers, texts and None among its attributes, too.
    """
    value = node.value
    if node.kind in (Kind.OPAQUE, Kind.VALUE) or (is_plain(value) and not isinstance(value, dict)):
        return
    if node.kind is Kind.TENSOR:
        if value.is_leaf and value.grad is not None:
            yield _attribute(node, "grad", value.grad)
        return
    if node.kind is Kind.MODULE:
        yield from _of_module(node, plain)
        return
    if isinstance(value, functools.partial):
        yield _attribute(node, "args", value.args)
        yield _attribute(node, "keywords", value.keywords)
        return
    yield from _items(node)
    if type(value) not in (dict, list, tuple, set, frozenset):
        for name, below in fields(value):
            if plain or type(below) not in _PLAIN:
                yield _attribute(node, name, below)


def _items(node: Node) -> Iterator[Node]:
    value = node.value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield _attribute(node, name, getattr(value, name))
    elif isinstance(value, Mapping):
        if len(value) > _MOST_PLAIN_ITEMS and is_plain(value):
            return
        for index, key in enumerate(list(value)):
            below = value[key]
            yield Node(f"{node.path}[{_key(key, index)}]", below, kind_of(below), value, key)
    elif isinstance(value, _SEQUENCES):
        for index, below in enumerate(list(value)):
            yield Node(f"{node.path}[{index}]", below, kind_of(below), value, index)
    elif isinstance(value, _SETS):
        for index, below in enumerate(list(value)):
            yield Node(f"{node.path}{{{index}}}", below, kind_of(below), value, None)


_MOST_PLAIN_ITEMS = 1000
"""A bigger dict of plain values is compared as one; a smaller one item by item."""


def _key(key: Any, index: int) -> str:
    """Return how a key stands in a path; one without a short text of its own has its number."""
    if isinstance(key, str | int | float | bool | bytes | enum.Enum | type(None) | tuple):
        text = repr(key)
        if len(text) <= 60:
            return text
    return f"<{type(key).__name__} {index}>"


def _attribute(node: Node, name: str, below: Any) -> Node:
    return Node(f"{node.path}.{name}", below, kind_of(below), node.value, name, True)


MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def _of_module(node: Node, plain: bool) -> Iterator[Node]:
    module = node.value
    for table in MODULE_TABLES:
        for name, below in list(getattr(module, table, {}).items()):
            yield _attribute(node, name, below)
    for name, below in list(vars(module).items()):
        if not plain and type(below) in _PLAIN:
            continue
        hidden = name in MODULE_TABLES or "_hooks" in name or name.startswith("_non_persistent")
        if not hidden and name not in ("training", "_is_full_backward_hook", "_backward_hooks"):
            yield _attribute(node, name, below)


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an instance holds: of its dictionary and of its slots.

    No property is called. A slot that is not set is left out.
    """
    own = _dictionary(value)
    yield from list(own.items())
    for name, slot in slots_of(type(value)):
        if name not in own:
            try:
                yield name, slot.__get__(value)
            except AttributeError:
                continue


def _dictionary(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def slots_of(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the slots of the instances of a class: each name, and what reads and sets it."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__ == "builtins":
            continue
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                found.setdefault(name, member)
    return tuple(found.items())


def _has_fields(value: Any) -> bool:
    cls = type(value)
    if cls.__module__ == "builtins":
        return False
    return any("__dict__" in vars(base) for base in cls.__mro__) or bool(slots_of(cls))


def _is_frozen(cls: type) -> bool:
    if dataclasses.is_dataclass(cls):
        return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    config = getattr(cls, "__struct_config__", None)  # msgspec
    if config is not None:
        return bool(config.frozen)
    if hasattr(cls, "__attrs_attrs__"):
        return "frozen" in getattr(cls.__setattr__, "__name__", "")
    return False
