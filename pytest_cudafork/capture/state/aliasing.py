"""What two states have in common: the same mutable objects, the same memory."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any, NamedTuple

from pytest_cudafork.capture.state.snapshot import Snapshot
from pytest_cudafork.capture.state.state_tree import Kind, Node
from pytest_cudafork.capture.state.tensors import storage_of


class Alias(NamedTuple):
    """A mutable object that both states hold; outermost ones only."""

    path: str  # in the first state
    other: str  # in the second
    node: Node


class Allowed:
    """What both states may hold: objects, and paths with wildcards."""

    def __init__(self, shared: Iterable[Any]) -> None:
        self._patterns = [one for one in shared if isinstance(one, str)]
        self._objects = [one for one in shared if not isinstance(one, str)]
        self._ids = {id(one) for one in self._objects}

    @property
    def objects(self) -> list[Any]:
        """The objects that were named themselves."""
        return self._objects

    def unmatched(self, paths: Iterable[str]) -> list[str]:
        """Return the patterns that none of these paths has."""
        known = list(paths)
        return [
            one for one in self._patterns if not any(_is_at_or_below(path, one) for path in known)
        ]

    def covers(self, path: str, value: Any) -> bool:
        """Whether a path, or one above it, or an object is allowed."""
        if id(value) in self._ids:
            return True
        return any(_is_at_or_below(path, one) for one in self._patterns)


def _is_at_or_below(path: str, pattern: str) -> bool:
    escaped = pattern.replace("[", "[[]")
    return fnmatch.fnmatchcase(path, escaped) or path.startswith((f"{pattern}.", f"{pattern}["))


def shared_objects(one: Snapshot, two: Snapshot, allowed: Allowed) -> list[Alias]:
    """Return the mutable objects that both hold, without those below another such object.

    Modules of torch are shared by design, tensors are looked at by memory.
    """
    found: list[Alias] = []
    inside: set[int] = set()
    for key, node in one.by_id.items():
        other = two.by_id.get(key)
        if id(node.parent) in inside:  # a walk meets what holds an object before the object
            inside.add(key)
        elif other is not None and node.kind in (Kind.MUTABLE, Kind.MODULE):
            inside.add(key)
            if node.kind is Kind.MUTABLE and not allowed.covers(node.path, node.value):
                found.append(Alias(node.path, other.path, node))
    return found


def shared_memory(one: Snapshot, two: Snapshot) -> dict[str, str]:
    """Return the paths of tensors that share memory: first state to second."""
    places = {storage_of(tensor): path for path, tensor in reversed(two.tensors().items())}
    places.pop(0, None)
    return {
        path: places[storage_of(tensor)]
        for path, tensor in one.tensors().items()
        if storage_of(tensor) in places
    }
