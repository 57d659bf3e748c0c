"""Which modules were being imported when the stack of a touch was taken."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_cudafork.observe.story.touch import Frame, Touch

_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_SEPARATORS = re.compile(r"[/\\]")


class Body(NamedTuple):
    """A module on the stack of a touch, and the line of it that was running."""

    module: str
    path: str
    line: int


class Namer:
    """Tells which module a file of a stack is."""

    def __init__(self, files: Mapping[str, str], loaded: frozenset[str]) -> None:
        self._loaded = loaded
        self._names: dict[str, str] = {}
        for name, path in files.items():
            if path:
                self._names[_real(path)] = name
                self._names[path] = name

    def name_of(self, filename: str) -> str:
        """Return the module's name, as well as it can be known."""
        if filename not in self._names:
            real = _real(filename)
            self._names[filename] = self._names.get(real) or self._guess(filename)
        return self._names[filename]

    def _guess(self, filename: str) -> str:
        """Take the longest end of the path that is a loaded module, or all from site-packages."""
        stem = os.path.splitext(filename)[0]
        parts = [part for part in _SEPARATORS.split(stem) if part]
        if len(parts) > 1 and parts[-1] == "__init__":
            parts.pop()
        for start in range(len(parts)):
            dotted = ".".join(parts[start:])
            if dotted in self._loaded:
                return dotted
        from_site = _SITE.sub("", stem)
        if from_site != stem:
            return _SEPARATORS.sub(".", from_site).removesuffix(".__init__")
        return parts[-1] if parts and not filename.startswith("<") else filename

    def trail(self, touch: Touch) -> list[Body]:
        """Return the modules that were being imported at a touch, outermost first."""
        found: list[Body] = []
        frames = touch.frames
        for index, frame in enumerate(frames):
            if frame.name == "<module>" and _is_imported(frames, index):
                line = _line_within(frames, index)
                found.append(Body(self.name_of(frame.filename), frame.filename, line))
        return found[::-1]


def _real(filename: str) -> str:
    try:
        return os.path.realpath(filename)
    except (OSError, ValueError):  # code may call its file anything
        return filename


def _is_imported(frames: Sequence[Frame], index: int) -> bool:
    return index + 1 < len(frames) and frames[index + 1].is_import_machinery


def _line_within(frames: Sequence[Frame], index: int) -> int:
    """Return the innermost running line of a module's own bodies: it may be in a class body."""
    module = frames[index]
    line = module.lineno
    for frame in reversed(frames[:index]):
        if frame.filename != module.filename or frame.is_import_machinery or not frame.is_body:
            break
        line = frame.lineno
    return line
