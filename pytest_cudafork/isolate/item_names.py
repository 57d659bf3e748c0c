"""What names a test in any session over the same files, so that a child can find it.

Used in the parent, which says which test it means, and in the child, which looks for it.
"""

from __future__ import annotations

from typing import Any

import pytest

_LONGEST_VALUE = 500


def identity(item: pytest.Item) -> tuple[str, ...]:
    """Return what names a test in any session over the same files: its file and the names below.

    The node id will not do: it depends on the directories given on the command line where the file
    lies outside the root directory, and plugins rewrite it.
    """
    names = [
        node.name
        for node in item.listchain()
        if not isinstance(node, pytest.Session | pytest.File) and not _is_directory(node)
    ]
    return (str(item.path), *names)


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


def name_of(item: pytest.Item) -> tuple[list[str], list[list[str]]]:
    """Return what finds a test in another session (see ``Finder.find``), as plain data."""
    return list(identity(item)), [list(pair) for pair in parameters(item)]


class Finder:
    """Finds the tests of a session by what names them in any session over the same files."""

    def __init__(self, items: list[pytest.Item], first: pytest.Item | None = None) -> None:
        """Take the tests; ``first`` is the one that is looked for most likely, and found fast."""
        self._items = items
        self._first = first
        self._by_name: dict[tuple[str, ...], pytest.Item] | None = None

    def find(self, names: list[str], wanted: list[list[str]]) -> pytest.Item | None:
        """Return the test with these names and parameters (see ``parameters``), or None.

        Where the name fits and the parameters do not, the test of the same function that has these
        parameters is meant.
        """
        if self._first is not None and identity(self._first) == tuple(names):
            return self._first
        item = self._index().get(tuple(names))
        values = [tuple(pair) for pair in wanted]
        if item is not None and (not values or parameters(item) == values):
            return item
        if not values or "[" not in names[-1]:
            return None
        function = (*names[:-1], names[-1].partition("[")[0] + "[")
        for other, candidate in self._index().items():
            same = other[:-1] == function[:-1] and other[-1].startswith(function[-1])
            if same and parameters(candidate) == values:
                return candidate
        return None

    def _index(self) -> dict[tuple[str, ...], pytest.Item]:
        if self._by_name is None:
            self._by_name = {}
            for item in self._items:
                self._by_name.setdefault(identity(item), item)
        return self._by_name


def _is_directory(node: Any) -> bool:
    directory = getattr(pytest, "Directory", None)  # pytest >= 8
    package = getattr(pytest, "Package", None)
    return isinstance(node, tuple(kind for kind in (directory, package) if kind is not None))
