"""Owns changes to the environment that can be taken back.

It does not know what the variables mean.
"""

from __future__ import annotations

import os


class EnvironmentChanges:
    """Changes to ``os.environ``, undone last first by ``undo``."""

    def __init__(self) -> None:
        self._former: list[tuple[str, str | None]] = []

    def set(self, name: str, value: str) -> None:
        """Set a variable."""
        self._former.append((name, os.environ.get(name)))
        os.environ[name] = value

    def prepend_path(self, name: str, folder: str) -> None:
        """Put a folder first in a list of folders, unless it is there already."""
        former = os.environ.get(name)
        folders = former.split(os.pathsep) if former else []
        if folder not in folders:
            self.set(name, os.pathsep.join([folder, *folders]))

    def unset(self, name: str) -> None:
        """Remove a variable, if it is set."""
        if name in os.environ:
            self._former.append((name, os.environ.pop(name)))

    def undo(self) -> None:
        """Restore every variable that was changed."""
        while self._former:
            name, value = self._former.pop()
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
