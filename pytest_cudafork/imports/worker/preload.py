"""Owns the guess which modules are worth importing once, in the template. Pure but for reading.

It does not know whether they are clean: each is tried in a child of the template first.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

_IMPORT = re.compile(
    rb"^(?:import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)|from[ \t]+([\w.]+)[ \t]+import\b)", re.M
)
_SHARE = 0.04
_FEWEST = 2
_MOST_CANDIDATES = 60
_MOST_BYTES = 1 << 20
_LOST_SECONDS = 1.5
_MOST_ANSWERS = 24
_SHARE_AGAIN = 0.1


def candidates(modules: Iterable[tuple[str, str, bool]]) -> list[str]:
    """Return what many modules of a package import at their top level, the most wanted first.

    The package's own parents come before everything else: every import of a module runs them.

    Args:
        modules: Name, file and whether it is a package, of each module.

    """
    known = list(modules)
    names = {name for name, _, _ in known}
    counts: Counter[str] = Counter()
    for name, path, is_package in known:
        counts.update(_imported_by(name, path, is_package))
    least = max(_FEWEST, _SHARE * len(known))
    wanted = [name for name, count in counts.most_common() if count >= least]
    inside = [name for name in wanted if name in names]
    outside = [name for name in wanted if name not in names and not _is_stdlib(name)]
    roots = sorted({name.partition(".")[0] for name in names})
    found = dict.fromkeys([*outside[: _MOST_CANDIDATES // 2], *roots, *inside])
    return list(found)[:_MOST_CANDIDATES]


def _is_stdlib(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names


def _imported_by(name: str, path: str, is_package: bool) -> set[str]:
    if not path.endswith(".py"):
        return set()
    try:
        with open(path, "rb") as file:
            source = file.read(_MOST_BYTES)
    except OSError:
        return set()
    found: set[str] = set()
    for plain, origin in _IMPORT.findall(source):
        if origin:
            target = _absolute(origin.decode("ascii", "replace"), name, is_package)
            if target:
                found.add(target)
        else:
            found.update(part.strip() for part in plain.decode("ascii", "replace").split(","))
    return found


def _absolute(origin: str, name: str, is_package: bool) -> str:
    """Return the full name of what ``from origin import`` imports from."""
    level = len(origin) - len(origin.lstrip("."))
    if level == 0:
        return origin
    parts = name.split(".") if is_package else name.split(".")[:-1]
    base = parts[: len(parts) - (level - 1)]
    rest = origin.lstrip(".")
    return ".".join([*base, *([rest] if rest else [])])


def others(loaded: Iterable[str], module: str) -> list[str]:
    """Return the other packages among what an import has loaded, without their modules.

    Of an import that touched CUDA, this is what may be clean: a library of which no module is clean
    still imports others that are, and every module of it imports them again.
    """
    own = module.partition(".")[0]
    return [name for name in loaded if "." not in name and name != own and not _is_stdlib(name)]


class Wanted:
    """Watches what the imports load again and again that the template has not got.

    It answers when enough time was lost, and not for ever: each time the template grows it is
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
        least = max(_FEWEST, _SHARE_AGAIN * len(self._recent))
        often = [name for name, count in counts.items() if count >= least]
        self._recent.clear()
        self._seconds = 0.0
        self._answers += bool(often)
        return self.worth_trying(often)
