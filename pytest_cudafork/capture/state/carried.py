"""What a callable carries: closure, defaults, instance, arguments that are bound, global variables.

The functions that it calls by such a name are looked through, so that a wrapper hides nothing.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from pytest_cudafork.capture.interface.lines import is_foreign
from pytest_cudafork.capture.state.state_tree import is_unwalked

_DEEPEST = 4
_MOST = 100  # functions


def closure_of(fn: Any) -> dict[str, Any]:
    """Return what a callable carries, by name; what a function below it carries, as ``inner.name``.

    Global variables that its code names count, unless they are modules, functions or classes.
    """
    found: dict[str, Any] = {}
    _add(fn, "", found, set(), 0)
    return found


def _add(fn: Any, prefix: str, found: dict[str, Any], seen: set[int], depth: int) -> None:
    own, calls = _carried_by(fn)
    for name, value in own.items():
        found.setdefault(f"{prefix}{name}", value)
    for name, value in {**own, **calls}.items():
        code = _code_of(value)
        if code is None or id(value) in seen or depth >= _DEEPEST or len(seen) >= _MOST:
            continue
        seen.add(id(value))
        if not is_foreign(code.co_filename):
            _add(value, f"{prefix}{name}.", found, seen, depth + 1)


def _code_of(value: Any) -> types.CodeType | None:
    """Return the code of a function, whatever is wrapped around it; None: it is none."""
    for _ in range(10):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif isinstance(value, types.FunctionType):
            return value.__code__
        elif type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):
            value = value.__wrapped__  # of lru_cache
        else:
            return None
    return None


def _carried_by(fn: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what one function carries, and the global functions that its code names."""
    found: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        found["args"], found["keywords"] = fn.args, fn.keywords
        fn = fn.func
    if isinstance(fn, types.MethodType):
        found["self"] = fn.__self__
        fn = fn.__func__
    fn = getattr(fn, "__wrapped__", fn)
    if not isinstance(fn, types.FunctionType):
        found.setdefault("self", fn)
        return found, _methods_of(fn)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with_contents = _contents(cell)
        found.update({name: with_contents[0]} if with_contents else {})
    defaults = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    if defaults:
        found["defaults"] = defaults
    calls: dict[str, Any] = {}
    for name in fn.__code__.co_names:
        value = fn.__globals__.get(name)
        if value is None:
            continue
        if _code_of(value) is not None:
            calls[name] = value
        elif not is_unwalked(value):
            found.setdefault(name, value)
    return found, calls


def _methods_of(instance: Any) -> dict[str, Any]:
    """Return the functions that an instance which is called holds, as a wrapper does."""
    held = getattr(instance, "__dict__", None)
    return {
        name: value
        for name, value in (held.items() if isinstance(held, dict) else ())
        if _code_of(value) is not None
    }


def _contents(cell: Any) -> tuple[Any] | None:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not bound yet
        return None
