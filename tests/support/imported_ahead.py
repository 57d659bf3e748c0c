"""What a process has imported and read ahead for its children, put away until they ask for it.

``interpreter_server.py`` uses it, in the server, and so it imports nothing of this repository; the
tests' own process uses ``InstalledPackages``.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_ANYTHING = metadata.DistributionFinder.Context()
_Found: Any = metadata.PathDistribution


class Installed(metadata.PathDistribution):
    """What is said of a package that is installed, read and parsed once."""

    read_text = functools.cache(_Found.read_text)  # type: ignore[assignment]
    entry_points = functools.cached_property(_Found.entry_points.fget)
    files = functools.cached_property(_Found.files.fget)
    metadata = functools.cached_property(_Found.metadata.fget)


class InstalledPackages:
    """Answers for ``importlib.metadata`` what is installed, in folders that have not changed.

    A session of pytest reads that of all packages, twice, before it has found its plugins.
    """

    def __init__(self) -> None:
        self._find: Any = metadata.MetadataPathFinder.find_distributions
        self._known: dict[str, tuple[int, list[metadata.Distribution]]] = {}
        for folder in sys.path:
            with contextlib.suppress(OSError):
                changed = os.stat(folder).st_mtime_ns
                found = self._find(metadata.DistributionFinder.Context(path=[folder]))
                self._known[folder] = changed, [Installed(one._path) for one in found]
        for _, packages in self._known.values():
            for package in packages:
                if any(one.group == "pytest11" for one in package.entry_points):
                    _ = package.files, package.metadata  # of those a session asks for more

    def answer(self) -> None:
        """Stand for ``MetadataPathFinder.find_distributions`` from now on."""
        setattr(metadata.MetadataPathFinder, "find_distributions", self.find_distributions)  # noqa: B010

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANYTHING
    ) -> Iterator[metadata.Distribution]:
        """Give what is installed where the context says, as ``MetadataPathFinder`` does."""
        if context.name is not None:
            yield from self._find(context)
            return
        for folder in context.path:
            yield from self._in(folder)

    def _in(self, folder: str) -> Iterable[metadata.Distribution]:
        changed, packages = self._known.get(folder, (None, []))
        with contextlib.suppress(OSError):
            if changed is not None and os.stat(folder).st_mtime_ns == changed:
                return packages
        found: Iterable[metadata.Distribution] = self._find(
            metadata.DistributionFinder.Context(path=[folder])
        )
        return found


class PutAway(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What the import of a module has brought, until somebody imports one of those modules.

    They come back together, as they came, and before them those of the imports that were made
    before this one.
    """

    def __init__(self, name: str, earlier: Sequence[PutAway]) -> None:
        self._name = name
        self._earlier = earlier
        self._modules: dict[str, types.ModuleType] = {}
        loaded, filters = set(sys.modules), list(warnings.filters)
        for one in earlier:
            sys.modules.update(one._modules)
        importlib.import_module(name)
        for one in earlier:
            for module in one._modules:
                sys.modules.pop(module, None)
        new = [one for one in sys.modules if one not in loaded and not _is_standard(one)]
        self._modules = {one: sys.modules.pop(one) for one in new}
        self._own_specs = {name: module.__spec__ for name, module in self._modules.items()}
        self._specs = {name: self._spec_of(name) for name in self._modules}
        self._filters = [one for one in warnings.filters if one not in filters]
        warnings.filters[:] = filters  # type: ignore[index]

    def _spec_of(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """Return the spec by which a module is imported; None for one that was made by hand.

        That is one as torch.ops, or a second name for a module. Others have put an object without
        a spec in their own place while they were imported, as torch.backends.cudnn.
        """
        spec = self._own_specs[name]
        if spec is not None:
            return spec if spec.name == name else None
        parent: Any = self._modules.get(name.rpartition(".")[0])
        return importlib.machinery.PathFinder.find_spec(name, getattr(parent, "__path__", None))

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for these modules, unless another of that name comes first by now."""
        spec = self._specs.get(fullname)
        if spec is None or fullname not in self._modules:
            return None
        if "." not in fullname:
            found = importlib.machinery.PathFinder.find_spec(fullname, path)
            if found is None or found.origin != spec.origin:
                return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=spec.origin)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module that is there."""
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Put everything back, one by one: an import of each may be waited for."""
        assert module.__spec__ is not None, "the import system has just given it one"
        name = module.__spec__.name
        if name == self._name:
            self._put_back()
        with contextlib.suppress(AttributeError):  # a module that lets nobody change it has kept it
            module.__spec__ = self._own_specs[name]

    def _put_back(self) -> None:
        """Have one after the other imported as each was ready when they were executed.

        One that no finder before this one answers for is put back at once; an audit hook does not
        hear of it. A package is there meanwhile, as it is where it imports its modules, and ready
        after them.
        """
        for one in self._earlier:
            importlib.import_module(one._name)
        for name, module in self._modules.items():
            if name == self._name:
                continue
            if self._specs[name] is None:
                sys.modules[name] = module
                continue
            for package in itertools.accumulate(name.split(".")[:-1], lambda a, b: f"{a}.{b}"):
                if package in self._modules:
                    sys.modules.setdefault(package, self._modules[package])
            sys.modules.pop(name, None)
            if self._is_waited_for(name):
                importlib.import_module(name)
            else:
                sys.modules[name] = module
        self._modules = {}
        warnings.filters[:0] = self._filters  # type: ignore[index]

    def _is_waited_for(self, name: str) -> bool:
        """Whether a finder that comes before this one answers for a module."""
        path = getattr(sys.modules.get(name.rpartition(".")[0]), "__path__", None)
        for finder in sys.meta_path:
            if finder is self:
                return False
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is not None and find_spec(name, path, None) is not None:
                return True
        return True  # this one was taken away: an import says what comes of that


class PackageAhead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The modules of a package, imported ahead; each is there when somebody imports it.

    With a module come those that it has imported itself, as ever. Each is handed out once: who
    takes it out of ``sys.modules`` and imports it again has it executed anew.

    Args:
        package: The name of the package.
        names: Modules and packages in it that are imported ahead.
        but: Those among them that are not.
        first: A module that must not find a replaced ``__import__``.

    """

    def __init__(
        self, package: str, names: Sequence[str], *, but: Sequence[str] = (), first: str = ""
    ) -> None:
        self._imports: dict[str, list[str]] = {}
        self._taken: dict[str, list[tuple[Any, str, Any]]] = {}
        self._modules: dict[str, types.ModuleType] = {}
        before, filters = set(sys.modules), list(warnings.filters)
        importlib.import_module(f"{package}.{first}".strip("."))
        original = builtins.__import__
        builtins.__import__ = self._noting(package, original)
        try:
            for name in _modules_of(package, names, but):
                importlib.import_module(name)
        finally:
            builtins.__import__ = original
            warnings.filters[:] = filters  # type: ignore[index]
        new = [name for name in sys.modules if name not in before]
        inside = [name for name in new if name.partition(".")[0] == package]
        self.others = [name for name in new if name not in inside and not _is_standard(name)]
        """What else was imported that is not of the standard library."""
        self._modules = {name: sys.modules.pop(name) for name in inside}
        self._specs = {name: module.__spec__ for name, module in self._modules.items()}
        for name, module in self._modules.items():
            parent, _, attribute = name.rpartition(".")
            if parent:  # their imports give it to the package again
                taken = vars(self._modules[parent]).pop(attribute)
                assert taken is module, f"{parent} has something else of the name {attribute}"

    def _noting(self, package: str, original: Any) -> Any:
        """Stand for ``__import__``, and note what the modules of the package import."""

        def note(name: str, *args: Any, **options: Any) -> Any:
            module = original(name, *args, **options)
            given = dict(zip(("globals", "locals", "fromlist", "level"), args, strict=False))
            given |= options
            around = given.get("globals") or {}
            importer, wanted = around.get("__name__", ""), given.get("fromlist") or ()
            if importer.partition(".")[0] == package:
                dots = "." * given.get("level", 0)
                full = importlib.util.resolve_name(dots + name, around["__package__"])
                names = (full, *(f"{full}.{one}" for one in wanted))
                self._imports.setdefault(importer, []).extend(names)
                if full.partition(".")[0] != package:
                    taken = self._taken.setdefault(importer, [])
                    taken += [(module, one, getattr(module, one, None)) for one in wanted]
            return module

        return note

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for these modules, unless another package of that name comes first by now."""
        spec = self._specs.get(fullname)
        if spec is None or fullname not in self._modules:
            return None
        if "." not in fullname and self._origin_otherwise(fullname) != spec.origin:
            self._modules = {}
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=spec.origin)

    def _origin_otherwise(self, name: str) -> str | None:
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec = find_spec(name, None, None) if find_spec is not None else None
            if spec is not None:
                return str(spec.origin)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module that is there."""
        return self._modules.pop(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Import what the module has imported when it was executed.

        What has been replaced since, as ``os.fork`` is by the fork guard, it has as it is now.
        """
        module.__spec__ = self._specs[module.__name__]
        for name in self._imports.get(module.__name__, ()):
            if name in self._modules:
                importlib.import_module(name)
        for holder, name, value in self._taken.get(module.__name__, ()):
            now = getattr(holder, name, value)
            if now is not value:
                same = [each for each, bound in vars(module).items() if bound is value]
                vars(module).update(dict.fromkeys(same, now))


def _modules_of(package: str, names: Sequence[str], but: Sequence[str]) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    for top in spec.submodule_search_locations or () if spec is not None else ():
        for path in sorted(Path(top).rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            inside = ".".join(parts).removesuffix("__init__").strip(".")
            runs = parts[-1] == "__main__"
            if _is_among(inside, names) and not _is_among(inside, but) and not runs:
                yield f"{package}.{inside}"


def _is_among(name: str, packages: Sequence[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def _is_standard(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top.startswith("_sysconfigdata_")  # and a platform
