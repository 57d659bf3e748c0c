"""The way back from changes to other packages' modules and classes, last change first.

The same stack holds changes to the environment (``settings/environment.py``) and whatever else is
to be undone: it is the standard library's, with a method for attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, os


class UndoStack(contextlib.ExitStack):
    """What to call to get back to how things were; in a ``with`` at the end of that.

    Every step is taken, also after one that raises; its error is raised at the end. Once undone,
    the stack is empty and can be used again.
    """

    def add(self, undo: Callable[[], object]) -> None:
        """Remember *undo*."""
        self.callback(undo)

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

        self.callback(restore)

    def __call__(self) -> None:
        """Undo everything that is not undone yet."""
        self.close()


def only_here(undo: Callable[[], object]) -> Callable[[], None]:
    """Return what takes a step in this process, and does nothing in one that was forked from it.

    A forked child that leaves the block or the session in which it was forked goes the same way
    back. It must not take from its parent what there is once for both, as a file is.
    """
    mine = os.getpid()

    def step() -> None:
        if os.getpid() == mine:
            undo()

    return step
