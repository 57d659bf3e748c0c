"""Files as they are now: their names in a record, and fingerprints of what is in them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from importlib.machinery import SOURCE_SUFFIXES, all_suffixes

ABSENT = "absent"
_FOLDER = "/"
_MODULES = "//"
"""Ends the name of a folder of which only what can be imported from it counts."""
_MOST_BYTES = 16 << 20
"""What is bigger, as a library of kernels, is told by size and time: to read it takes too long."""
_CODE = tuple(all_suffixes())
_SOURCES = tuple(SOURCE_SUFFIXES)


class Digests:
    """Names and fingerprints of files; each file is looked at once.

    Args:
        root: The repository's folder, without links.

    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str] = {}

    def names(self, path: str) -> tuple[str, ...]:
        """Return what a file is called in a record; () for one that does not belong there.

        A file of the repository is called by its path in it; a link has two names, its own and
        that of what it leads to. Of other folders only code belongs there.
        """
        if path not in self._names:
            self._names[path] = tuple(dict.fromkeys(self._names_of(path)))
        return self._names[path]

    def _names_of(self, path: str) -> Iterable[str]:
        bare = path.rstrip(_FOLDER) or _FOLDER
        end = path[len(bare) :]
        linked = os.path.join(os.path.realpath(os.path.dirname(bare)), os.path.basename(bare))
        for real in (linked, os.path.realpath(bare)):
            if real == self._root and end != _MODULES:
                continue  # Python lists it to find what is installed: any new file would count
            if f"{real}/".startswith(f"{self._root}/"):
                yield os.path.relpath(real, self._root) + end
            elif real.endswith(_CODE) or end == _MODULES:
                yield real + end

    def of_all(self, names: Iterable[str]) -> dict[str, str]:
        """Return the fingerprints of files, by their names."""
        return {name: self.of(name) for name in names}

    def of(self, name: str) -> str:
        """Return the fingerprint of one file or folder; ``ABSENT`` where there is none."""
        if name not in self._digests:
            self._digests[name] = _digest(os.path.join(self._root, name))
        return self._digests[name]

    def naming(self, appeared: Iterable[str], among: Iterable[str]) -> set[str]:
        """Return the sources that have the bare name of another file in them.

        Whether a file is there can be asked without opening it, of which Python tells nobody.

        Args:
            appeared: The files.
            among: Where to look; what is no source is passed over.

        """
        names = {os.fsencode(os.path.basename(each.rstrip(_FOLDER))) for each in appeared}
        if not names:
            return set()
        any_name = re.compile(b"|".join(map(re.escape, sorted(names))))
        sources = [each for each in among if each.endswith(_SOURCES)]
        return {each for each in sources if any_name.search(self._content(each))}

    def _content(self, name: str) -> bytes:
        try:
            with open(os.path.join(self._root, name), "rb") as file:
                return file.read()
        except OSError:
            return b""

    def changed_meanwhile(self, names: Iterable[str], since_ns: int) -> set[str]:
        """Return the files that are not what they were when they were looked at first.

        Args:
            names: What to look at.
            since_ns: For files that were not looked at before: when that would have been.

        """
        changed = set()
        for name in names:
            path = os.path.join(self._root, name)
            if name in self._digests:
                if _digest(path) != self._digests[name]:
                    changed.add(name)
            elif not name.endswith(_FOLDER) and _time_of(path) >= since_ns:
                changed.add(name)
        return changed


def _digest(path: str) -> str:
    try:
        if path.endswith(_MODULES):
            return _hash("\0".join(modules_in(path)).encode("utf-8", "surrogateescape"))
        if path.endswith(_FOLDER):
            entries = sorted(name for name in os.listdir(path) if name != "__pycache__")
            return _hash("\0".join(entries).encode("utf-8", "surrogateescape"))
        about = os.stat(path)
        if about.st_size > _MOST_BYTES:
            return f"{about.st_size} {about.st_mtime_ns}"
        with open(path, "rb") as file:
            return _hash(file.read())
    except OSError:
        return ABSENT


def _hash(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _time_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def in_words(name: str) -> str:
    """Return the words for a name in a record."""
    bare = name.rstrip(_FOLDER)
    return f"what can be imported from {bare}" if name.endswith(_MODULES) else name


def modules_in(folder: str) -> list[str]:
    """Return the names of what can be imported from a folder: of packages without an __init__, too.

    Such a package counts if a module lies in it; one of which all modules lie deeper does not.
    """
    found = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_CODE):
                    found.add(entry.name.partition(".")[0])
                elif entry.name.isidentifier() and entry.is_dir() and _has_code(entry.path):
                    found.add(entry.name)
    except OSError:
        return []
    return sorted(found)


def _has_code(folder: str) -> bool:
    try:
        return any(name.endswith(_CODE) for name in os.listdir(folder))
    except OSError:
        return False
