"""What the imports of one fork server load again and again, and so is worth importing in it once.

Whether a module is clean is not known here: each is tried in a child of the fork server first.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_cudafork.imports.values.targets import is_of_stdlib

_SHARE = 0.1
"""Which part of the latest imports must have loaded a module."""
_FEWEST = 2
_LOST_SECONDS = 1.5
_MOST_ANSWERS = 24


def others(loaded: Iterable[str], module: str) -> list[str]:
    """Return the other packages among what an import has loaded, without their modules.

    Of an import that touched CUDA, this is what may be clean: a library of which no module is clean
    still imports others that are, and every module of it imports them again.
    """
    own = module.partition(".")[0]
    return [name for name in loaded if "." not in name and name != own and not is_of_stdlib(name)]


class RepeatedImports:
    """Watches what the imports load again and again that the fork server has not got.

    It answers when enough time was lost, and not for ever: each time the fork server grows it is
    another process, forked from the one before, and the longer that line is, the more slowly the
    kernel forks.
    """

    def __init__(self) -> None:
        self._refused: set[str] = set()
        self._recent: list[tuple[str, ...]] = []
        self._seconds = 0.0
        self._answers = 0

    def add(self, loaded: Sequence[str], seconds: float) -> None:
        """Take note of what one clean import has loaded, in that order, and how long it took."""
        self._recent.append(tuple(loaded))
        self._seconds += seconds

    def refuse(self, name: str) -> None:
        """Never name this one again, nor what is below it: it touches, fails, or leaves threads."""
        self._refused.add(name)

    def worth_trying(self, names: Iterable[str]) -> list[str]:
        """Return those that are not there yet and were not refused."""
        return [
            name
            for name in dict.fromkeys(names)
            if name not in sys.modules and not self._is_refused(name)
        ]

    def _is_refused(self, name: str) -> bool:
        parts = name.split(".")
        above = (".".join(parts[: number + 1]) for number in range(len(parts)))
        return not self._refused.isdisjoint(above)

    def next(self) -> list[str]:
        """Return what many of the latest imports loaded, importers first; mostly nothing."""
        early = self._seconds < _LOST_SECONDS or len(self._recent) < _FEWEST
        if early or self._answers >= _MOST_ANSWERS:
            return []
        counts = Counter(name for loaded in self._recent for name in loaded)
        least = max(_FEWEST, _SHARE * len(self._recent))
        often = [name for name, count in counts.items() if count >= least]
        self._recent.clear()
        self._seconds = 0.0
        self._answers += bool(often)
        return self.worth_trying(often)
