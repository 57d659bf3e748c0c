"""Owns the way back from changes to other packages' modules and classes.

It does not know what is changed, nor why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class UndoStack:
    """What to call to get back to how things were, last change first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def add(self, undo: Callable[[], object]) -> None:
        """Remember *undo*."""
        self._undo.append(undo)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute of a module or class, to be given back or deleted again."""
        missing = object()
        previous = vars(owner).get(name, missing)
        setattr(owner, name, value)

        def restore() -> None:
            if previous is not missing:
                setattr(owner, name, previous)
            elif name in vars(owner):
                delattr(owner, name)

        self._undo.append(restore)

    def __enter__(self) -> UndoStack:
        """Return itself: what is changed in a ``with`` is undone at its end."""
        return self

    def __exit__(self, *error: object) -> None:
        """Undo everything."""
        self()

    def __call__(self) -> None:
        """Undo everything that is not undone yet; raises what the first failing step raises."""
        while self._undo:
            self._undo.pop()()
