"""Which modules a package has, found without importing any of it.

Names come from listing folders and zip files; whether a name is a module, and which of several
files wins, is asked of the finders that an import would ask. What a package adds to its own
``__path__`` when it runs cannot be seen.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import importlib
import importlib.metadata
import keyword
import os
import pkgutil
import re
import struct
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import (
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    all_suffixes,
)
from itertools import accumulate
from typing import Any
from zipimport import zipimporter

from pytest_cudafork.counted import count_of
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.imports.worker.hiding import modules_of

_LEFT_OUT = frozenset({"__init__", "__main__", "__pycache__"})
_BRACKETS = re.compile(r"\[!?[\w\-]+\]")
_PATTERN = re.compile(r"[\w.*?]+")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC_SYMBOLS = 11
_CLOSE = 0.8
"""How alike two names must be; at 0.6, difflib's own, 'nope' would mean 'opcode'."""
_MOST_CLOSE = 3


class UnknownPackage(ValueError):
    """There is no such package or module; recoverable, nothing was imported.

    ``is_top`` says that its top-level package is not there.
    """

    def __init__(self, message: str, *, is_top: bool = False) -> None:
        super().__init__(message)
        self.is_top = is_top


def find_modules(
    package: str, exclude: Sequence[str] = (), path: Sequence[str] | None = None
) -> list[FoundModule]:
    """Return every importable module of a package, itself first, the others sorted by name.

    Nothing is imported, parents included. Left out are names that no import statement can write,
    stubs, shared libraries that are no modules, folders in which there is no module at any depth,
    and every ``__main__``: to import that is to run the program. A link to a folder that it lies in
    is not followed.

    Args:
        package: A top-level name such as "vllm", or a dotted one; a plain module gives one entry.
        exclude: Patterns as of ``fnmatch``, matched against full names; what lies below a package
            that matches is left out with it.
        path: Folders and zip files to look in instead of asking ``sys.meta_path``.

    Raises:
        UnknownPackage: It is not there.
        ValueError: ``package`` is no module name, or a pattern can match none.

    """
    _check_name(package)
    _check_patterns(exclude)
    importlib.invalidate_caches()  # files may have been written a moment ago
    search = _Search(path)
    found = search.root(package)
    if found is None:
        raise _unknown(package, search)
    if any(_matches(name, exclude) for name in accumulate(package.split("."), "{}.{}".format)):
        return []
    module, locations = found
    below = list(_walk(search, package, locations, exclude, ()))
    if module.is_package and not module.path and not below:
        if any(_walk(search, package, locations, (), ())):
            return []
        raise UnknownPackage(
            f"{package!r} is a folder without a Python module in it ({', '.join(locations)})."
        )
    return [module, *sorted(below, key=lambda each: each.name)]


def _walk(
    search: _Search,
    parent: str,
    locations: Sequence[str],
    exclude: Sequence[str],
    above: tuple[str, ...],
) -> Iterator[FoundModule]:
    """Give the modules below a package; ``above`` are the real folders that it lies in."""
    above = (*above, *map(os.path.realpath, locations))
    for short in search.names_in(locations):
        name = f"{parent}.{short}"
        if _matches(name, exclude):
            continue
        spec = search.child(name, locations)
        if spec is None:
            continue
        module, inner = _describe(name, spec)
        if module.path.endswith(f"{short}.so") and not _has_entry_point(module.path, short):
            continue
        inner = [folder for folder in inner if os.path.realpath(folder) not in above]
        if module.is_package and not module.path:
            below = list(_walk(search, name, inner, exclude, above))
            if below:
                yield module
                yield from below
        elif inner or not module.is_package:
            yield module
            yield from _walk(search, name, inner, exclude, above)


def _describe(name: str, spec: ModuleSpec) -> tuple[FoundModule, list[str]]:
    path = spec.origin or "" if spec.has_location else ""
    locations = spec.submodule_search_locations
    module = FoundModule(name, path, is_package=locations is not None)
    return module, [str(folder) for folder in locations or ()]


class _Search:
    """Asks the finders of this interpreter, or looks along a given path."""

    def __init__(self, path: Sequence[str] | None) -> None:
        self._path = None if path is None else list(path)
        self.asks_finders = path is None
        self._archives: dict[str, list[str]] = {}
        # Editable installs bring finders, which may know modules that lie in no folder.
        own = (BuiltinImporter, FrozenImporter, PathFinder)
        self._others = [] if path is not None else [f for f in sys.meta_path if f not in own]

    def path(self) -> list[str]:
        return [entry or os.curdir for entry in (sys.path if self._path is None else self._path)]

    def root(self, package: str) -> tuple[FoundModule, list[str]] | None:
        """Find the module that was asked for, by way of its parents' folders."""
        top, *rest = package.split(".")
        spec = self._top(top)
        name = top
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            name = f"{name}.{part}"
            spec = self.child(name, list(spec.submodule_search_locations))
        return None if spec is None else _describe(package, spec)

    def _top(self, name: str) -> ModuleSpec | None:
        if self._path is not None:
            return _along(name, self.path())
        return next(filter(None, (_ask(finder, name, None) for finder in sys.meta_path)), None)

    def child(self, name: str, locations: Sequence[str]) -> ModuleSpec | None:
        """Find a module of a package that lies in these folders and need not be imported."""
        for finder in self._others:
            # One that asks ``PathFinder`` for a namespace package hears of its parent: it is not
            # in ``sys.modules``. ``_along`` finds that one too.
            with contextlib.suppress(KeyError):
                spec = _ask(finder, name, locations)
                if spec is not None:
                    return spec
        return _along(name, locations)

    def names_in(self, locations: Iterable[str]) -> list[str]:
        """Return the names that may be modules, without those that no one can import by name."""
        names: set[str] = set()
        for location in locations:
            names |= self._listed(location)
        return sorted(name for name in names if _is_name(name) and name not in _LEFT_OUT)

    def _listed(self, location: str) -> set[str]:
        importer = pkgutil.get_importer(location)
        if isinstance(importer, zipimporter):
            return _names(self._in_archive(importer))
        if importer is not None and not os.path.isdir(location):
            return {module.name for module in pkgutil.iter_modules([location])}
        try:
            with os.scandir(location) as entries:
                return _names((entry.name, os.path.isdir(entry.path)) for entry in entries)
        except OSError:  # not readable, or gone: nothing can be imported by way of it
            return set()

    def _in_archive(self, importer: zipimporter) -> set[tuple[str, bool]]:
        """Return the names directly below a folder of a zip file, and which are folders."""
        archive, prefix = importer.archive, importer.prefix.replace(os.sep, "/")
        if archive not in self._archives:
            try:
                with zipfile.ZipFile(archive) as file:
                    self._archives[archive] = file.namelist()
            except (OSError, zipfile.BadZipFile):
                self._archives[archive] = []
        inside = [
            name[len(prefix) :] for name in self._archives[archive] if name.startswith(prefix)
        ]
        return {(name.partition("/")[0], "/" in name) for name in inside}


def _ask(finder: Any, name: str, locations: Sequence[str] | None) -> ModuleSpec | None:
    find = getattr(finder, "find_spec", None)
    spec: ModuleSpec | None = None if find is None else find(name, locations, None)
    return spec


def _along(name: str, locations: Iterable[str]) -> ModuleSpec | None:
    """Find a module in folders and zip files.

    ``PathFinder`` does this too, but for a namespace package it insists on an imported parent.
    """
    portions: list[str] = []
    for location in locations:
        importer = pkgutil.get_importer(location)
        spec = None if importer is None else importer.find_spec(name)
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _has_entry_point(file: str, name: str) -> bool:
    """Whether a ``.so`` without an ABI tag is meant for Python, and no library like libtorch.so.

    It must name ``PyInit_<name>`` among its dynamic symbols. What cannot be read counts.
    """
    try:
        with open(file, "rb") as elf:
            head = elf.read(64)
            if head[:6] != b"\x7fELF\x02\x01" or not name.isascii():
                return True
            elf.seek(int.from_bytes(head[40:48], "little"))
            size, count = struct.unpack_from("<HH", head, 58)
            sections = [_SECTION.unpack(elf.read(size)[:64]) for _ in range(count)]
            symbols = next(section for section in sections if section[1] == _DYNAMIC_SYMBOLS)
            _, _, _, _, offset, length, *_ = sections[symbols[6]]
            elf.seek(offset)
            return f"PyInit_{name}\0".encode() in elf.read(length)
    except (OSError, struct.error, StopIteration, IndexError):
        return True


def _names(entries: Iterable[tuple[str, bool]]) -> set[str]:
    """Return what files and folders would be called as modules."""
    names: set[str] = set()
    suffixes = all_suffixes()
    for name, is_folder in entries:
        if is_folder:
            names.add(name)
        else:
            names.update(name[: -len(end)] for end in suffixes if name.endswith(end))
    return names


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_name(package: str) -> None:
    if not package:
        raise ValueError("The name of the package is empty.")
    if not all(map(_is_name, package.split("."))):
        raise ValueError(
            f"{package!r} is no module name; give the name that is imported, such as 'vllm' or "
            f"'vllm.attention'.{_installed_as(package)}"
        )
    if package.rpartition(".")[2] in _LEFT_OUT:
        raise ValueError(f"{package!r} is left out: name the package or module that it belongs to.")


def _check_patterns(patterns: Iterable[str]) -> None:
    for pattern in patterns:
        if not _PATTERN.fullmatch(_BRACKETS.sub("?", pattern)):
            raise ValueError(
                f"The pattern {pattern!r} can match no module name; write it as 'pkg.sub', "
                "'pkg.sub.*' or '*.test_*' (*, ? and [..] as in a shell)."
            )


def _unknown(package: str, search: _Search) -> UnknownPackage:
    """Say what was looked for and where, and what may have been meant."""
    parent, _, short = package.rpartition(".")
    if not parent:
        names = set(search.names_in(search.path()))
        names |= set(sys.builtin_module_names) if search.asks_finders else set()
        where = f"on the module search path ({count_of(len(search.path()), 'entry', 'entries')})"
        hints = f"{_did_you_mean(short, names)}{_installed_as(package)}"
        return UnknownPackage(f"There is no module {package!r} {where}.{hints}", is_top=True)
    above = search.root(parent)
    if above is None:
        return _unknown(parent, search)
    module, folders = above
    if not module.is_package:
        return UnknownPackage(
            f"There is no module {package!r}: {parent!r} is a module, not a package."
        )
    return UnknownPackage(
        f"The package {parent!r} ({', '.join(folders)}) has no module {short!r}."
        f"{_did_you_mean(short, search.names_in(folders), parent)}"
    )


def _did_you_mean(short: str, names: Iterable[str], parent: str = "") -> str:
    """Ask whether one of the names that are there was meant; "" if none is close.

    Args:
        short: The last part of the name that is not there.
        names: What is there in its place.
        parent: The package in which all this is, or "".

    """
    close = difflib.get_close_matches(short, sorted(names), n=_MOST_CLOSE, cutoff=_CLOSE)
    shown = [repr(".".join(filter(None, (parent, name)))) for name in close]
    return f" Did you mean {' or '.join(shown)}?" if shown else ""


def _installed_as(name: str) -> str:
    """Tell what is imported if the name is that of a distribution."""
    found = importlib.metadata.distributions(name=name)
    tops = {module.partition(".")[0] for each in found for module in modules_of(each)}
    modules = sorted(filter(str.isidentifier, tops))
    if not modules:
        return " What is imported may be called otherwise than what is installed (PyYAML: 'yaml')."
    return f" The distribution {name!r} is imported as {' or '.join(map(repr, modules))}."
