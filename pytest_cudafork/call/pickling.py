"""Pickling a call for another interpreter, and which functions travel there by value.

A function is sent by reference (module and name) where
the child can import the module without side effects worth mentioning: installed libraries and
packages on the path. Test modules, conftest files and what cannot be imported go by value.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import sysconfig
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from pytest_cudafork.call.late_category import Named
from pytest_cudafork.compat import cloudpickle_internals
from pytest_cudafork.compat.unpatched import contextlib, inspect, os, re, threading
from pytest_cudafork.errors import ChildError
from pytest_cudafork.process.protocol import exception_parts, unpicklable

_TEST_FILE = re.compile(r"conftest\.py|test_.*\.py|.*_test\.py", re.DOTALL)


def dump_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shown: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None,
) -> bytes:
    """Return the pickle of a call, for a process that shares nothing but the file system.

    ``shown`` is the call that the message speaks of, if it is another one.

    Raises:
        ChildError: Something in it does not pickle; an argument is named.

    """
    with modules_by_value():
        try:
            return exception_parts.dumps((fn, args, kwargs))
        except Exception as error:  # pickling runs the objects' own code, which may raise anything
            raise ChildError(_complaint(error, *(shown or (fn, args, kwargs)))) from error


def _complaint(
    error: Exception, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Say what of a call does not pickle: the first argument that does not by itself."""
    culprit, found = f"{fn!r} and its arguments", unpicklable.reason(error, fn)
    for name, value in _named(fn, args, kwargs):
        try:
            cloudpickle_internals.dumps(value)
        except Exception as one:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            culprit = f"the argument {name} of {fn!r}, a {kind},"
            found = unpicklable.reason(one, value)
            break
    return (
        f"{culprit} cannot be sent to another interpreter: {found}. "
        "Pass plain values, or use run_forked."
    )


def _named(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    """Return the arguments of a call with their names, as far as the function tells them."""
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):  # it is written in C
        parameters = inspect.signature(fn).parameters.values()
        positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [repr(one.name) for one in parameters if one.kind in positional]
    numbers = [f"number {number}" for number in range(len(names), len(args))]
    named = zip([*names[: len(args)], *numbers], args, strict=False)
    return [*named, *((repr(name), value) for name, value in kwargs.items())]


class _ByValue:
    """Modules that cloudpickle is told to take by value while something is pickled.

    It keeps one list for all threads, so a module stays on it until the last one is done.
    """

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        # The holder of another one may not exist in this process; a signal handler may hold it.
        self._lock = threading.RLock()

    def begin(self, modules: list[types.ModuleType], begun: list[types.ModuleType]) -> None:
        """Put modules on the list, but for those that others have put there; note which."""
        with self._lock:
            known = cloudpickle.list_registry_pickle_by_value()
            for module in modules:
                name = module.__name__
                if name not in known:
                    cloudpickle.register_pickle_by_value(module)
                elif not self._users[name]:
                    continue
                self._users[name] += 1
                begun.append(module)

    def end(self, begun: list[types.ModuleType]) -> None:
        """Take them off again, if no other thread is at it."""
        with self._lock:
            for module in begun:
                self._users[module.__name__] -= 1
                if not self._users[module.__name__]:
                    cloudpickle.unregister_pickle_by_value(module)


_BY_VALUE = _ByValue()
"""One for the process, as cloudpickle's list is."""


@contextlib.contextmanager
def modules_by_value() -> Iterator[None]:
    """Let what is defined in modules that a child cannot import be pickled by value."""
    known: dict[str, bool] = {}
    by_value = [module for module in list(sys.modules.values()) if _goes_by_value(module, known)]
    begun: list[types.ModuleType] = []
    try:
        _BY_VALUE.begin(by_value, begun)
        yield
    finally:
        _BY_VALUE.end(begun)


def dump_filters() -> bytes:
    """Return the pickle of this process's warning filters: a list of pickles, one of each."""
    kept = []
    for action, message, category, module, line in warnings.filters:
        sent: Any = category
        if isinstance(category, type) and Named.suits(category):
            sent = Named(category)
        with contextlib.suppress(Exception):  # it exists here only: no warning there is of it
            one = cloudpickle_internals.dumps((action, message, sent, module, line))
            cloudpickle.loads(one)
            kept.append(one)
    return cloudpickle_internals.dumps(kept)


def remember_classes(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make local classes that a call mentions keep their identity on the way back from a fork.

    cloudpickle rebuilds a class that no module names, and knows it again only where it has seen it
    before the fork. Without this, ``pytest.raises(LocalError)`` would not know its own exception.
    """
    seen: set[int] = set()
    waiting: list[Any] = [fn, *args, *kwargs.values()]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.MethodType):
            waiting += [value.__func__, value.__self__]
        elif isinstance(value, types.FunctionType):
            waiting += [*_contents(value), *(value.__defaults__ or ())]
            waiting += (value.__kwdefaults__ or {}).values()
        elif isinstance(value, type):
            if "<locals>" in value.__qualname__:
                cloudpickle_internals.remember_class(value)
                waiting += value.__mro__
        else:
            waiting.append(type(value))


def _contents(function: types.FunctionType) -> list[Any]:
    """Return what a function's closure holds; an empty cell holds nothing."""
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            continue
    return contents


def _goes_by_value(module: Any, known: dict[str, bool]) -> bool:
    """Whether a child cannot import a module; ``known`` is what was found out about others."""
    if not isinstance(module, types.ModuleType) or module.__name__ in ("__main__", "__mp_main__"):
        return False  # cloudpickle sends these by value by itself
    if sys.modules.get(module.__name__) is not module:
        return False
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        # Made by hand; not built in, no namespace package, and not an imitation of a module that
        # loads its parts on access (py's are, and they refuse this attribute).
        return getattr(module, "__spec__", module) is None
    if file.startswith(_installed_prefixes()):
        return False
    if _TEST_FILE.fullmatch(os.path.basename(file)):
        return True
    return not _importable(module.__name__, file, known)


@functools.cache  # asked for each module that is loaded, and Python works it out anew each time
def _installed_prefixes() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_path(name) + os.sep for name in names)


def _importable(name: str, file: str, known: dict[str, bool]) -> bool:
    """Whether a fresh interpreter with this ``sys.path`` would find this very file by that name."""
    if name not in known:  # a package is asked for by each of its modules
        known[name] = _is_found(name, file, known)
    return known[name]


def _is_found(name: str, file: str, known: dict[str, bool]) -> bool:
    package, _, _ = name.rpartition(".")
    where = None
    if package:
        parent = sys.modules.get(package)
        path = getattr(parent, "__path__", None)
        if parent is None or path is None:
            return False
        parent_file = getattr(parent, "__file__", None)
        if isinstance(parent_file, str) and not _importable(package, parent_file, known):
            return False
        where = list(path)
    for finder in sys.meta_path:
        if type(finder).__name__ == "AssertionRewritingHook":
            continue  # pytest's, for this process only
        find_spec = getattr(finder, "find_spec", None)
        spec = None if find_spec is None else find_spec(name, where, None)
        if isinstance(spec, importlib.machinery.ModuleSpec):
            return spec.origin is not None and _same(spec.origin, file)
    return False


def _same(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)
