"""What names a test in any session over the same files, so that a child can find it.

Used in the parent, which says which test it means, and in the child, which looks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cudafork.compat.unpatched import contextlib

_LONGEST_VALUE = 500


def identity(item: pytest.Item) -> tuple[str, ...]:
    """Return what names a test in any session over the same files: its file and the names below.

    The node id will not do: it depends on the directories given on the command line where the file
    lies outside the root directory, and plugins rewrite it. Below the file there may be more that
    is a ``pytest.File``: the blocks of pytest-describe are modules in their module.
    """
    names: list[str] = []
    file: pytest.File | None = None
    for node in item.listchain():
        if isinstance(node, pytest.Session) or _is_directory(node):
            continue
        if file is None and isinstance(node, pytest.File):
            file = node
        else:
            names.append(node.name)
    return (str(item.path), *names)


_NUMBER = pytest.StashKey[int]()
_AGAIN = "\0"
"""Begins what is behind the names of a test that is not the first one of these names."""


def number_namesakes(collected: Sequence[pytest.Item]) -> None:
    """Number the tests that a collector has given one name, in the order of their collection.

    pytest allows that; only functions have names of their own. To be called in every session, with
    all that it has collected, before anything is named or found.
    """
    numbers: dict[tuple[Any, str], int] = {}
    for item in dict.fromkeys(collected):
        key = (item.parent, item.name)
        number = numbers[key] = numbers.get(key, 0) + 1
        if number > 1:
            item.stash[_NUMBER] = number


def _numbered(item: pytest.Item) -> tuple[str, ...]:
    number = item.stash.get(_NUMBER, None)
    return identity(item) if number is None else (*identity(item), f"{_AGAIN}{number}")


def find_location(item: pytest.Item) -> None:
    """Let pytest find out where a test stands: it remembers, and children of this process know.

    A user's kind of test that stands nowhere will say so in its turn.
    """
    with contextlib.suppress(Exception):
        _ = item.location


def parameters(item: pytest.Item) -> list[tuple[str, str]]:
    """Return the names and values of a test's parameters, as far as the values are plain data.

    Ids such as ``x0`` say nothing about the value: two processes may order a set differently.
    """
    callspec = getattr(item, "callspec", None)
    found = []
    for name, value in getattr(callspec, "params", {}).items():
        if _is_plain(value):
            found.append((str(name), repr(value)[:_LONGEST_VALUE]))
    return found


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str, bytes)


COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""The tests of this session in the order of their collection, those deselected later included."""
_PLACES = pytest.StashKey[dict[pytest.Item, list[int]]]()


def place_of(item: pytest.Item) -> list[int] | None:
    """Return the place of a test among those of its function, from 0 on, and how many these are.

    None for a test without parameters, and where nobody has kept what was collected.
    """
    stash = item.config.stash
    if "[" not in item.name or COLLECTED not in stash:
        return None
    if _PLACES not in stash:
        functions = _by_function(stash[COLLECTED])
        stash[_PLACES] = {
            one: [number, len(same)]
            for same in functions.values()
            for number, one in enumerate(same)
        }
    return stash[_PLACES].get(item)


def _by_function(items: list[pytest.Item]) -> dict[tuple[str, ...], list[pytest.Item]]:
    """Return the tests with parameters by what they have in common: all but the parameters."""
    functions: dict[tuple[str, ...], list[pytest.Item]] = {}
    for item in items:
        if "[" in item.name:
            functions.setdefault(_function(identity(item)), []).append(item)
    return functions


def _function(names: Sequence[str]) -> tuple[str, ...]:
    return (*names[:-1], names[-1].partition("[")[0] + "[")


def name_of(item: pytest.Item) -> tuple[list[str], list[list[str]], list[int] | None]:
    """Return what finds a test in another session (see ``Finder.find``), as plain data."""
    return list(_numbered(item)), [list(pair) for pair in parameters(item)], place_of(item)


class Finder:
    """Finds the tests of a session by what names them in any session over the same files."""

    def __init__(self, items: list[pytest.Item], first: pytest.Item | None = None) -> None:
        """Take the tests; ``first`` and those behind it are looked for most likely, and fast."""
        self._items = items
        self._first = first
        self._next: int | None = None
        """Where the test is that is looked for most likely."""
        if first is not None and first in items:
            self._next = items.index(first) + 1
        self._by_name: dict[tuple[str, ...], pytest.Item] | None = None
        self._functions: dict[tuple[str, ...], list[pytest.Item]] | None = None

    def find(
        self, names: list[str], wanted: list[list[str]], place: list[int] | None = None
    ) -> pytest.Item | None:
        """Return the test with these names and parameters (see ``parameters``), or None.

        Where the name fits and the parameters do not, the test of the same function that has these
        parameters is meant. Where neither is found, because they hold the time or a random number,
        it is the one at the same ``place`` (see ``place_of``), if there are as many as there.
        """
        item = self._by_names(names, wanted) or self._by_place(names, place)
        if item is None and names[-1].startswith(_AGAIN):
            return self.find(names[:-1], wanted, place)  # there it was collected twice, here once
        return item

    def _by_names(self, names: list[str], wanted: list[list[str]]) -> pytest.Item | None:
        if self._first is not None and _numbered(self._first) == tuple(names):
            return self._first
        name, values = tuple(names), [tuple(pair) for pair in wanted]
        likely = self._likely()
        if likely is not None and _numbered(likely) == name and parameters(likely) == values:
            return likely
        item = self._index().get(name)
        if item is not None and (not values or parameters(item) == values):
            return item
        if not values or "[" not in names[-1]:
            return None
        function = _function(names)
        for other, candidate in self._index().items():
            same = other[:-1] == function[:-1] and other[-1].startswith(function[-1])
            if same and parameters(candidate) == values:
                return candidate
        return None

    def _by_place(self, names: list[str], place: list[int] | None) -> pytest.Item | None:
        if place is None:
            return None
        if self._functions is None:
            self._functions = _by_function(self._items)
        number, count = place
        same = self._functions.get(_function(names), [])
        return same[number] if len(same) == count else None

    def _likely(self) -> pytest.Item | None:
        """Return the test behind the last one, which is found without an index."""
        number = self._next
        if number is None or number >= len(self._items):
            return None
        self._next = number + 1
        return self._items[number]

    def _index(self) -> dict[tuple[str, ...], pytest.Item]:
        if self._by_name is None:
            self._by_name = {}
            for item in self._items:
                self._by_name.setdefault(_numbered(item), item)
        return self._by_name


def _is_directory(node: Any) -> bool:
    directory = getattr(pytest, "Directory", None)  # pytest >= 8
    package = getattr(pytest, "Package", None)
    return isinstance(node, tuple(kind for kind in (directory, package) if kind is not None))
