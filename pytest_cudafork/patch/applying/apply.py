"""Applying one patch to this process: now, or as soon as its module has been executed."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.observe.base.after_import import Required, after_import
from pytest_cudafork.patch.applying.records import ENVIRONMENT, Record
from pytest_cudafork.settings import environment

Undo = Callable[[], None]
_NOTHING: Any = object()
"""Stands for what was not there."""


class Loaded:
    """The key and the value of a patch where they are known as objects."""

    def __init__(self, key: Any = None, value: Any = None) -> None:
        self.key = key
        self.value = value


def apply(
    record: Record, loaded: Loaded | None = None, failed: Callable[[str], None] | None = None
) -> Undo:
    """Apply a patch; before its module is imported, as soon as that has been executed.

    Args:
        record: The patch.
        loaded: Its key and value; None: they are unpickled when they are needed.
        failed: Told in words of what cannot be applied, before that is raised.

    Returns:
        What undoes it, in this process.

    Raises:
        AttributeError, KeyError: What is to be replaced is not there, and the module is. Where it
            is imported later, its import raises this.

    """
    if record.kind in ENVIRONMENT:
        return _set_variable(record)
    undos: list[Undo] = []

    def patch(module: ModuleType) -> None:
        try:
            undos.append(_patch(record, module, loaded or _load(record)))
        except Exception as error:
            if failed is not None:
                text = str(error.args[0]) if error.args else ""
                begins = "" if text.startswith(f"{record}") else f"{record}: "
                failed(f"{begins}{text} ({type(error).__name__})")
            raise

    module = sys.modules.get(record.module)
    if module is not None and not standard_library.is_being_imported(module):
        patch(module)
    else:
        undos.append(after_import(record.module, Required(patch)))

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def _load(record: Record) -> Loaded:
    key = pickle.loads(record.key) if record.key else None
    return Loaded(key, pickle.loads(record.value) if record.value else None)


def _patch(record: Record, module: Any, loaded: Loaded) -> Undo:
    names = record.path.split(".")
    if record.kind in ("setitem", "delitem"):
        mapping = _walk(record, module, names)
        return _patch_item(record, mapping, loaded)
    owner = _walk(record, module, names[:-1])
    return _patch_attribute(record, owner, names[-1], loaded)


def _walk(record: Record, owner: Any, names: list[str]) -> Any:
    """Return the object at the end of a path.

    Raises:
        AttributeError: There is none.

    """
    for name in names:
        owner = _own(record, owner, name)
    return owner


def _own(record: Record, owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise AttributeError(f"{record}: {_named(owner)} has no attribute {name!r}") from None


def _named(owner: Any) -> str:
    return f"{type(owner).__name__} {getattr(owner, '__name__', repr(owner)[:200])!r}"


def _patch_attribute(record: Record, owner: Any, name: str, loaded: Loaded) -> Undo:
    if record.raising:
        _own(record, owner, name)
    # of a class what stands in it, not what it gives for it (staticmethod and the like)
    before = vars(owner).get(name, _NOTHING) if isinstance(owner, type) else _NOTHING
    if not isinstance(owner, type):
        before = getattr(owner, name, _NOTHING)
    if record.kind == "setattr":
        setattr(owner, name, loaded.value)
    elif hasattr(owner, name):
        delattr(owner, name)

    def undo() -> None:
        if before is not _NOTHING:
            setattr(owner, name, before)
        elif hasattr(owner, name):
            delattr(owner, name)

    return undo


def _patch_item(record: Record, mapping: Any, loaded: Loaded) -> Undo:
    key = loaded.key
    there = key in mapping
    if record.kind == "delitem" and record.raising and not there:
        raise KeyError(f"{record}: there is no such key")
    before = mapping[key] if there else _NOTHING
    if record.kind == "setitem":
        mapping[key] = loaded.value
    elif there:
        del mapping[key]

    def undo() -> None:
        if before is not _NOTHING:
            mapping[key] = before
        elif key in mapping:
            del mapping[key]

    return undo


def _set_variable(record: Record) -> Undo:
    name = record.path
    undo = contextlib.ExitStack()
    if record.kind == "setenv":
        environment.set_variable(undo, name, record.value.decode())
    elif environment.is_set(name):
        environment.unset_variable(undo, name)
    elif record.raising:
        raise KeyError(f"{record}: there is no such variable")
    return undo.close
