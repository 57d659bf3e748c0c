"""What every session of pytest does in the same way when it starts, done once before the fork.

``interpreter_server.py`` uses it, in the server, and so it imports nothing of this repository; the
tests' own process uses ``FixtureNames`` for the sessions that tests make in it.
No session can tell what it does from what happens in a fresh interpreter:

- ``ReadCode``: Python keeps the code of a module in a file beside it and reads that. Here it has
  been read, and holds as long as the source has the time and size that it had. Each child executes
  the module itself.
- ``PreparedConfig``: pytest makes the object of its settings and gives it pytest's own plugins
  before it runs anything of others, and looks at two variables and ``-p no:NAME`` alone. Where
  these would lead elsewhere it is made anew, and so is every one but the first.
- ``FixtureNames``: pytest asks each name in each plugin whether a fixture is behind it, perhaps
  within wrappers. Of its own modules only names of fixtures are given to it, as long as nothing in
  the module was replaced; and nothing is asked for a wrapper that cannot have one.
- ``rewrite_fast``: pytest asks of each module that is imported whether its name is like that of a
  file with tests. What is sure not to be is answered without making a path of it.
"""

from __future__ import annotations

import builtins
import fnmatch
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import operator
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ASKED = ("PYTEST_DEBUG", "TOX_ENV_DIR")
"""The variables that decide how pytest makes the object of its settings."""

_MACHINERY = importlib.machinery
_Stamp = tuple[int, int]
# Nobody can give an attribute to an object of these types, and none has one that pytest looks for.
_WITHOUT_WRAPPER = frozenset(
    map(type, (None, True, 0, 0.0, "", b"", (), [], {}, set(), frozenset(), len))
) | {
    *(types.WrapperDescriptorType, types.MethodWrapperType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    property,
}
_WRAPPER = frozenset({"__wrapped__", "_mock_name"})
"""What pytest looks for; a function has it among its own attributes or not at all."""


class ReadCode:
    """The code of the modules of a package, read before they are imported."""

    def __init__(self, package: str) -> None:
        self.known: dict[str, tuple[_Stamp, types.CodeType]] = {}
        """By the path of the source: its time and size, and the code."""
        spec = importlib.util.find_spec(package)
        for top in spec.submodule_search_locations or () if spec is not None else ():
            for folder, _, names in os.walk(top):
                for name in names:
                    if name.endswith(".py"):
                        self._read(os.path.join(folder, name))
                self._answer_for(folder)

    def _read(self, path: str) -> None:
        if os.path.exists(importlib.util.cache_from_source(path)):
            code = _MACHINERY.SourceFileLoader("", path).get_code("")
            if code is not None:
                self.known[path] = _stamp(path), code

    def _answer_for(self, folder: str) -> None:
        """Put the finder of a folder where Python keeps those of the folders it has looked into."""
        finder = _MACHINERY.FileFinder(
            folder,
            (_MACHINERY.ExtensionFileLoader, _MACHINERY.EXTENSION_SUFFIXES),
            (self.loader, _MACHINERY.SOURCE_SUFFIXES),  # type: ignore[arg-type]  # makes a loader
            (_MACHINERY.SourcelessFileLoader, _MACHINERY.BYTECODE_SUFFIXES),
        )
        finder.find_spec("")  # it looks into the folder once, and again when that has changed
        sys.path_importer_cache[folder] = finder

    def loader(self, name: str, path: str) -> importlib.machinery.SourceFileLoader:
        """Return the loader of a module: Python's own, but for where it has the code from."""
        loader = _MACHINERY.SourceFileLoader(name, path)
        if path in self.known:
            get_code = functools.partial(self._code, loader)
            setattr(loader, "get_code", get_code)  # noqa: B010  # mypy: a method
        return loader

    def _code(
        self, loader: importlib.machinery.SourceFileLoader, name: str
    ) -> types.CodeType | None:
        stamp, code = self.known[loader.path]
        if _stamp(loader.path) == stamp:
            return code
        return _MACHINERY.SourceFileLoader.get_code(loader, name)


def _stamp(path: str) -> _Stamp:
    state = os.stat(path)
    return state.st_mtime_ns, state.st_size


class PreparedConfig:
    """The settings of a session, as pytest makes them before it looks at its command line."""

    def __init__(self) -> None:
        self._module: Any = importlib.import_module("_pytest.config")
        self._original = self._module.get_config
        self._own = frozenset(self._module.default_plugins)
        self._variables = [os.environ.get(name) for name in ASKED]
        self.config: Any = None
        """What is prepared, until it is given away; None with an older pytest."""
        # Older ones do not say by which name they call themselves in their help.
        if "prog" in inspect.signature(self._original).parameters:
            self.config = self._original()

    def offer(self) -> None:
        """Give it to the first session of this process, which is the next that pytest does."""
        if self.config is not None:
            self._module.get_config = self._get_config

    def _get_config(self, args: Any = None, plugins: Any = None, *, prog: str | None = None) -> Any:
        self._module.get_config = self._original
        blocked = self._blocked(args or ())
        same = [os.environ.get(name) for name in ASKED] == self._variables
        if not same or blocked is None:
            return self._original(args, plugins, prog=prog)
        config, self.config = self.config, None
        config.invocation_params = config.InvocationParams(
            args=args or (), plugins=plugins, dir=Path.cwd()
        )
        config._parser.prog = prog
        # The manager itself and the settings come first, then what is blocked, then the plugins.
        names = config.pluginmanager._name2plugin
        registered = list(names.items())
        names.clear()
        names.update(registered[:2])
        config.pluginmanager.consider_preparse(args or (), exclude_only=True)
        names.update(registered[2:])
        return config

    def _blocked(self, args: Sequence[Any]) -> list[str] | None:
        """Return the plugins that the arguments block; None if there is more to that."""
        noted = _Noted()
        self._module.PytestPluginManager.consider_preparse(noted, args, exclude_only=True)
        names = [name.removeprefix("no:") for name in noted.names]
        special = any(name in self._own or name.endswith("conftest.py") for name in names)
        return None if special else names


class _Noted:
    """Takes the place of a manager of plugins that is told which to leave out."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def consider_pluginarg(self, name: str) -> None:
        self.names.append(name)


def plugins_of_pytest() -> list[types.ModuleType]:
    """Import pytest's own plugins, and return them."""
    from _pytest.config import default_plugins

    return [importlib.import_module(f"_pytest.{name}") for name in (*default_plugins, "pytester")]


class FixtureNames:
    """Which names of pytest's own modules are those of fixtures."""

    def __init__(self, modules: Sequence[types.ModuleType]) -> None:
        self._fixtures: Any = importlib.import_module("_pytest.fixtures")
        self._manager = self._fixtures.FixtureManager
        self._find: Any = getattr(self._manager, "_find_wrapped_fixture_def", None)
        self._known: dict[types.ModuleType, tuple[list[Any], list[str]]] = {}
        if self._find is not None:  # older ones look for no wrappers, and have less to do
            for module in modules:
                names = [name for name in dir(module) if self._may_be_fixture(module, name)]
                self._known[module] = list(vars(module).values()), names

    def use(self) -> None:
        """Let pytest ask here."""
        if self._known:
            self._fixtures.dir = self.names
            self._manager._find_wrapped_fixture_def = _finds_wrapped(self._find)

    def _may_be_fixture(self, module: types.ModuleType, name: str) -> bool:
        value = getattr(module, name, None)
        definition = self._fixtures.FixtureFunctionDefinition
        return type(value) is definition or self._find(None, value) is not None

    def names(self, holder: object) -> list[str]:
        """Stand for ``dir`` where pytest looks for fixtures."""
        if type(holder) is types.ModuleType and holder in self._known:
            values, names = self._known[holder]
            now = vars(holder)
            if len(now) == len(values) and all(map(operator.is_, now.values(), values)):
                return list(names)
        return builtins.dir(holder)


def _finds_wrapped(original: Any) -> Any:
    """Stand for pytest's search for a fixture behind wrappers."""

    def find(self: Any, obj: Any) -> Any:
        kind = type(obj)
        if kind in _WITHOUT_WRAPPER:
            return None
        if kind is types.FunctionType and _WRAPPER.isdisjoint(obj.__dict__):
            return None
        return original(self, obj)

    return find


def rewrite_fast() -> None:
    """Let pytest know in less time which modules it need not rewrite."""
    hook: Any = importlib.import_module("_pytest.assertion.rewrite").AssertionRewritingHook
    hook._early_rewrite_bailout = _bails_out_early(hook._early_rewrite_bailout)


def _bails_out_early(original: Any) -> Any:
    """Stand for pytest's first look at a module: True if it is none of those that it rewrites."""

    def bails_out(self: Any, name: str, state: Any) -> Any:
        base = name.rpartition(".")[2]
        if (
            base.isidentifier()  # else it is not sure what pytest makes of it
            and (self.session is None or self._session_paths_checked)  # it takes note of them once
            and base not in self._basenames_to_check_rewrite
            and not any("/" in one or fnmatch.fnmatch(f"{base}.py", one) for one in self.fnpats)
            and not self._is_marked_for_rewrite(name, state)
        ):
            state.trace(f"early skip of rewriting module: {name}")
            return True
        return original(self, name, state)

    return bails_out
