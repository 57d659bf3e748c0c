"""Modules that a server of interpreters has imported, and its children import as if it had not.

Two ways, for two kinds of libraries. ``PutAway`` is for those of which all comes at once, as torch;
``OneByOne`` for a package of which each program imports another part, as the package under test.

It is imported by ``interpreter_server.py`` alone, and so imports the standard library alone.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import itertools
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any


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
        """Import one after the other as each was ready when they were executed.

        A package is there meanwhile, as it is where it imports its modules, and ready after them.
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
            importlib.import_module(name)
        self._modules = {}
        warnings.filters[:0] = self._filters  # type: ignore[index]


class OneByOne(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that come back one at a time: each when it is imported, after those that it imports.

    So a child has in ``sys.modules`` what it would have had, in the same order. What a module has
    imported from within a function, it imports in the child.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._imports: dict[str, dict[str, None]] = {}
        loaded, filters = set(sys.modules), list(warnings.filters)
        with self._imports_noted(loaded):
            for name in names:
                importlib.import_module(name)
        warnings.filters[:] = filters  # type: ignore[index]
        new = [one for one in sys.modules if one not in loaded and not _is_standard(one)]
        self.modules = {one: sys.modules.pop(one) for one in new}
        self._specs = {name: module.__spec__ for name, module in self.modules.items()}
        for name, module in self.modules.items():
            package, _, own = name.rpartition(".")
            if package and vars(self.modules[package]).get(own) is module:
                delattr(self.modules[package], own)  # the import will set it again

    @contextlib.contextmanager
    def _imports_noted(self, loaded: set[str]) -> Iterator[None]:
        """Note what each module imports when it is executed, but for what was there before."""
        original = builtins.__import__

        def noting(name: str, *args: Any, **keywords: Any) -> types.ModuleType:
            module = original(name, *args, **keywords)
            fromlist = keywords.get("fromlist", args[2] if len(args) > 2 else ())
            full = module.__name__ if fromlist else name
            noted = self._imports.setdefault(_executed_module(), {})
            for one in (full, *(f"{full}.{part}" for part in fromlist or ())):
                if one in sys.modules and one not in loaded:
                    noted[one] = None
            return module

        builtins.__import__ = noting
        try:
            yield
        finally:
            builtins.__import__ = original

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for these modules, unless another package of that name comes first by now."""
        if fullname not in self.modules:
            return None
        own = self._specs[fullname]
        root = fullname.partition(".")[0]
        if root == fullname:
            found = _found_by_others(fullname)
            if own is None or found is None or found.origin != own.origin:
                return None
        elif sys.modules.get(root) is not self.modules[root]:
            return None
        origin = own.origin if own is not None else None
        return importlib.machinery.ModuleSpec(fullname, self, origin=origin)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module that is there."""
        return self.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Import what the module has imported when it was executed."""
        assert module.__spec__ is not None, "the import system has just given it one"
        name = module.__spec__.name
        for one in self._imports.get(name, ()):
            if one in self.modules:
                importlib.import_module(one)
        module.__spec__ = self._specs[name]


def _executed_module() -> str:
    """Return the name of the module whose body runs, the innermost one; "" outside of all."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def _found_by_others(name: str) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if not isinstance(finder, (PutAway, OneByOne)):
            found = finder.find_spec(name, None)
            if found is not None:
                return found
    return None


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names
