"""Make a library look not installed in this process, and undo that.

All questions for a module end in one function of importlib, which walks ``sys.meta_path``; that
function is replaced, and ``sys.meta_path`` stays as it is, finders included. A finder in front of
the others could not do it: it cannot say "no" for those behind it, other tools put theirs before
it, and take away or look for their own (``PathFinder`` too) in the list.

Not hidden from code that asks a finder by itself (``PathFinder.find_spec``), lists folders
(``pkgutil.iter_modules``), reads metadata by another library than ``importlib.metadata`` and its
backport, or loads a shared library.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, all_suffixes
from types import ModuleType
from typing import Any

from pytest_cudafork import distributions
from pytest_cudafork.compat import standard_library
from pytest_cudafork.observe.base.after_import import after_import

_MOST_NAMED = 5
_SUFFIXES = sorted(all_suffixes(), key=len, reverse=True)
_PTH = re.compile(r"^[^/,\n]+\.pth(?=,)", re.M)


class AlreadyImported(RuntimeError):
    """A library cannot be hidden because modules of it are loaded; recoverable, nothing changed."""


def hide(libraries: Sequence[str]) -> Callable[[], None]:
    """Make libraries look not installed, in this process and those that are forked from it.

    ``import`` raises ``ModuleNotFoundError`` as for any missing module, ``find_spec`` of
    ``importlib.util`` returns None, and ``importlib.metadata`` does not know the distribution:
    one that bears the library's name, or whose modules are all hidden. The modules are read from
    RECORD (with the folders that its ``.pth`` files add) or else ``top_level.txt``; where neither
    tells, as in some editable installs or where a distribution only requires others, the name
    alone decides. A distribution that also brings a module that is not hidden stays.

    Args:
        libraries: Names as imported, top-level or dotted; all that lies below goes with them.

    Returns:
        What makes them visible again. To be called in reverse order where several are in force.

    Raises:
        AlreadyImported: A module of a library is loaded already.
        ValueError: A name is no module name.

    """
    hidden = _Hidden(libraries)
    loaded = sorted(name for name, module in list(sys.modules.items()) if module and name in hidden)
    if loaded:
        more = len(loaded) - _MOST_NAMED
        raise AlreadyImported(
            f"{', '.join(hidden.names)} cannot be hidden, for it is imported already: "
            f"{', '.join(loaded[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}. "
            "Hide it in a fresh interpreter, before anything else is imported."
        )
    undo = contextlib.ExitStack()
    try:
        _hide_modules(hidden, undo)
        _hide_distributions(hidden, importlib.metadata, undo)
        undo.callback(
            after_import(
                "importlib_metadata", lambda module: _hide_distributions(hidden, module, undo)
            )
        )
    except BaseException:
        undo.close()
        raise
    return undo.close


class _Hidden:
    """The names that are hidden, with all that lies below them."""

    def __init__(self, libraries: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(libraries))
        for name in self.names:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(
                    f"{name!r} is no module name; give the name that is imported "
                    "('flash_attn', not 'flash-attn'; 'cuda.tile')."
                )
        self._below = tuple(f"{name}." for name in self.names)
        self._distributions = frozenset(map(_normalized, self.names))

    def __contains__(self, module: str) -> bool:
        return module in self.names or module.startswith(self._below)

    def hides(self, distribution: importlib.metadata.Distribution) -> bool:
        """Whether nothing that is still visible comes from a distribution."""
        if _normalized(distributions.field(distribution, "Name")) in self._distributions:
            return True
        modules = modules_of(distribution)
        first = next(modules, "")
        return first in self and all(module in self for module in modules)


def _hide_modules(hidden: _Hidden, undo: contextlib.ExitStack) -> None:
    visible = standard_library.find_spec_function()
    if visible is None:
        raise RuntimeError(f"{sys.implementation.name} {sys.version} has no way to hide modules.")

    def find_spec(name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in hidden:
            return None
        found: ModuleSpec | None = visible(name, path, target)
        return found

    for module in (standard_library.import_bootstrap(), importlib.util):
        if vars(module).get(standard_library.FIND_SPEC) is visible:
            _replace(module, standard_library.FIND_SPEC, find_spec, undo)


def _hide_distributions(hidden: _Hidden, metadata: ModuleType, undo: contextlib.ExitStack) -> None:
    """Filter what all finders together know, in ``importlib.metadata`` or its backport."""
    visible = standard_library.distribution_resolvers(metadata)

    def filtered(resolver: Callable[[Any], Iterable[Any]], context: Any) -> Iterator[Any]:
        return (found for found in resolver(context) if not hidden.hides(found))

    def resolvers() -> Iterator[Callable[[Any], Iterator[Any]]]:
        return (functools.partial(filtered, resolver) for resolver in visible())

    made = staticmethod(resolvers)
    _replace(metadata.Distribution, standard_library.DISCOVER_RESOLVERS, made, undo)


def _replace(owner: Any, name: str, value: object, undo: contextlib.ExitStack) -> None:
    undo.callback(setattr, owner, name, vars(owner)[name])  # the staticmethod, not its function
    setattr(owner, name, value)


def modules_of(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Give the modules that a distribution installed, as far as it says so; not each once.

    Where only ``top_level.txt`` tells, top-level names stand for all that is below.
    """
    record = distributions.text(distribution, "RECORD")
    roots = [root for file in _PTH.findall(record) for root in _added(distribution, file)]
    is_listed = False
    # Lazily: a record may have twenty thousand lines, and mostly the first one tells enough.
    with contextlib.suppress(csv.Error):  # zeros in it, as a disk that was full leaves them
        for file in (row[0] for row in csv.reader(io.StringIO(record)) if row):
            inside = next((file[len(root) :] for root in roots if file.startswith(root)), file)
            name = _module_of(inside)
            if name:
                is_listed = True
                yield name
    if not is_listed:
        yield from distributions.text(distribution, "top_level.txt").split()


def _added(distribution: importlib.metadata.Distribution, pth: str) -> Iterator[str]:
    """Give the folders of the distribution that one of its ``.pth`` files puts on ``sys.path``."""
    try:
        with open(str(distribution.locate_file(pth)), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        if line.strip() and not line.startswith(("#", "import ", "import\t", "/")):
            yield line.strip().rstrip("/") + "/"


def _module_of(file: str) -> str:
    """Return the module that an installed file is; "" for what is none."""
    end = next((end for end in _SUFFIXES if file.endswith(end)), "")
    parts = file[: -len(end) or None].split("/")
    if parts[-1] == "__init__":
        parts.pop()
    is_module = end and parts and all(part.isidentifier() for part in parts)
    # Editable installs add a module of their own; shared libraries lie beside modules.
    if not is_module or "__pycache__" in parts or parts[0].startswith("__editable__"):
        return ""
    return "" if end == ".so" and parts[-1].startswith("lib") else ".".join(parts)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
