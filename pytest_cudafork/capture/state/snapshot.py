"""What a state holds at one moment, by path, and how two moments differ."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.state.compare import Tolerance, difference, short
from pytest_cudafork.capture.state.state_tree import Kind, Node, is_array, is_plain, walk
from pytest_cudafork.capture.state.tensors import place_of
from pytest_cudafork.compat.torch_graphs.tensors import version_of

_MOST_BYTES = 256 << 20
_MOST_OF_ONE = 64 << 20
MISSING = object()
"""Stands for the value of something that is not there."""


class Entry(NamedTuple):
    """One object of a state at one moment; ``value`` is a copy where contents can change."""

    node: Node
    value: Any
    storage: int = 0  # of a tensor
    version: int = -1  # torch's count of in-place changes


class How(enum.Enum):
    """How something changed."""

    INITIALIZED = "initialized"  # nothing, False or empty before, something after
    WRITTEN = "written"  # a tensor's contents
    REPLACED = "replaced"  # another tensor than before
    CHANGED = "changed"


class Change(NamedTuple):
    """What differs between two moments at one path, and both values in words."""

    path: str
    how: How
    before: str
    after: str
    node: Node  # as it is afterwards
    old: Any = None  # the object that was there; MISSING if there was none


class Snapshot:
    """The contents of a state at one moment."""

    def __init__(self, root: Any, name: str = "state", *, skip: Iterable[Any] = ()) -> None:
        """Walk the state and copy what can change.

        Raises:
            TooManyObjectsError: it is too big.

        """
        self.entries: dict[str, Entry] = {}
        self.by_id: dict[int, Node] = {}
        self.left_out: list[str] = []
        self._bytes = 0
        for node in walk(root, name, skip=skip):
            self.entries[node.path] = self._entry(node)
            if node.kind is not Kind.VALUE:
                self.by_id.setdefault(id(node.value), node)

    def _entry(self, node: Node) -> Entry:
        value = node.value
        if node.kind is Kind.TENSOR:
            return self._tensor(node)
        if node.kind is Kind.VALUE:
            return Entry(node, value)
        if is_array(value):
            return Entry(node, (value.shape, str(value.dtype), value.tobytes()))
        if is_plain(value):
            return Entry(node, _plain_copy(value))
        if isinstance(value, dict | list | set | tuple):
            return Entry(node, _Container(type(value).__name__, len(value)))
        return Entry(node, _Container(type(value).__name__, None))

    def _tensor(self, node: Node) -> Entry:
        tensor = node.value
        place = place_of(tensor)
        if place is None:
            return Entry(node, None)
        size = tensor.numel() * tensor.element_size()
        version = version_of(tensor)
        if size > _MOST_OF_ONE or self._bytes + size > _MOST_BYTES:
            self.left_out.append(node.path)
            return Entry(node, None, place.storage, version)
        self._bytes += size
        return Entry(node, tensor.detach().clone(), place.storage, version)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the state, by path."""
        return {
            path: entry.node.value
            for path, entry in self.entries.items()
            if entry.node.kind is Kind.TENSOR
        }


class _Container(NamedTuple):
    kind: str
    size: int | None


class _Plain(NamedTuple):
    kind: str
    contents: Any


def _plain_copy(value: Any) -> _Plain:
    kind = type(value).__name__
    if isinstance(value, dict):
        return _Plain(kind, dict(value))
    return _Plain(kind, frozenset(value) if isinstance(value, set | frozenset) else tuple(value))


def changes(before: Snapshot, after: Snapshot) -> list[Change]:
    """Return what differs, the outermost path of what is new, in the order of the walk."""
    found: list[Change] = []
    new: set[int] = set()  # ids of objects below which everything is new
    for path, entry in after.entries.items():
        old = before.entries.get(path)
        if old is None:
            parent = entry.node.parent
            if id(parent) not in new and id(parent) in before.by_id and not _reached(before, entry):
                words = short(entry.node.value)
                found.append(Change(path, How.INITIALIZED, "missing", words, entry.node, MISSING))
            if entry.node.kind is not Kind.VALUE:
                new.add(id(entry.node.value))
            continue
        change = _compare(path, old, entry)
        if change is not None:
            found.append(change)
            if entry.node.value is not old.node.value and entry.node.kind is not Kind.VALUE:
                new.add(id(entry.node.value))
    return found


def _reached(before: Snapshot, entry: Entry) -> bool:
    """Whether an object was there before, at another path."""
    return entry.node.kind is not Kind.VALUE and id(entry.node.value) in before.by_id


def _compare(path: str, old: Entry, new: Entry) -> Change | None:
    how = _how(old, new)
    if how is None:
        return None
    return Change(path, how, words_of(old), words_of(new), new.node, old.node.value)


def _how(old: Entry, new: Entry) -> How | None:
    if new.node.kind is Kind.TENSOR and old.node.kind is Kind.TENSOR:
        if old.storage != new.storage:
            return How.REPLACED
        return How.WRITTEN if _written(old, new) else None
    if same(old, new):
        return None
    return How.INITIALIZED if is_unset(old) and not is_unset(new) else How.CHANGED


def _written(old: Entry, new: Entry) -> bool:
    is_one = old.node.value is new.node.value
    return (is_one and old.version != new.version) or not same(old, new)


def same(one: Entry, other: Entry) -> bool:
    """Whether two entries hold equal contents; tensors bit by bit, NaN equals NaN."""
    a, b = one.value, other.value
    if one.node.kind is Kind.TENSOR or other.node.kind is Kind.TENSOR:
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return one.node.kind is other.node.kind  # too big to be copied: not known
        return difference("", a, b, Tolerance(0, 0)) is None
    if one.node.kind is Kind.OPAQUE and other.node.kind is Kind.OPAQUE:
        return type(one.node.value) is type(other.node.value)
    if type(a) is not type(b):
        return False
    try:
        return bool(a == b) or (a != a and b != b)
    except Exception:  # a comparison that the user's class refuses says nothing
        return True


def is_unset(entry: Entry) -> bool:
    """Whether an entry is what stands for "not initialized yet": None, False, 0 or empty."""
    if entry.node.kind is Kind.TENSOR:
        return False
    value = entry.value
    if entry.node.kind is Kind.VALUE:
        return value is None or (type(value) in (bool, int, float, str) and not value)
    if isinstance(value, _Container):
        return value.size == 0
    return isinstance(value, _Plain) and not value.contents


def words_of(entry: Entry) -> str:
    """Return an entry's contents at its moment in one short line."""
    value = entry.value if isinstance(entry.value, torch.Tensor) else entry.node.value
    if isinstance(entry.value, _Container):
        size = entry.value.size
        return entry.value.kind if size is None else f"{entry.value.kind} of {size}"
    if isinstance(entry.value, _Plain):
        return short(entry.value.contents)
    return short(value)
