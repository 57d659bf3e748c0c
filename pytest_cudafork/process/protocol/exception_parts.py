"""Exceptions and warnings that a plain pickle does not bring back as they are, taken apart.

An exception is pickled as its class and its ``args``, and made anew by a call. One whose
``__init__`` takes something else is lost, and with it a group that holds it; one whose ``__init__``
changes what it is given is changed twice; slots and what is held in C (the file of an ``OSError``,
the line of a ``SyntaxError``) are lost where they are not among the ``args``. The parts do without
that call.
"""

from __future__ import annotations

import types
from typing import Any

from pytest_cudafork.compat import cloudpickle_internals
from pytest_cudafork.compat.unpatched import builtins, contextlib, pickle

_HEAP_TYPE = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: a class that Python code, or a library, has made."""
_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_Parts = tuple[type, tuple[Any, ...], dict[str, Any], dict[str, Any]]
_GROUPS: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.11
_args: Any = vars(BaseException)["args"]
_NOT_TAKEN = vars(AttributeError).get("obj")
"""Whatever had no such attribute, which may be anything; CPython's own pickles leave it out."""


def dumps(value: Any) -> bytes:
    """Return a pickle of an exception, or of a value that may hold some.

    Raises what the code of its parts raises, where one has no pickle.
    """
    try:
        return cloudpickle_internals.dumps(value, _Pickler)
    except BaseException:  # a part's own code decides what it raises here
        cloudpickle_internals.dumps(value)  # the words of an exception's own code tell more
        raise


def rebuilt(
    kind: Any, args: tuple[Any, ...], attributes: dict[str, Any], fields: dict[str, Any]
) -> Any:
    """Return an exception of these parts, without a call of its ``__init__`` or ``__new__``."""
    built_in = kind
    while built_in.__flags__ & _HEAP_TYPE:
        built_in = built_in.__base__
    given = (fields["message"], [*fields["exceptions"]]) if issubclass(kind, _GROUPS) else args
    error = built_in.__new__(kind, *given)
    _args.__set__(error, args)
    descriptors = _descriptors(kind)
    for name, value in fields.items():
        with contextlib.suppress(Exception):  # it is read only: the built-in class has set it
            descriptors[name].__set__(error, value)
    _give(error, attributes)
    return error


def _give(error: Any, attributes: dict[str, Any]) -> None:
    error.__dict__.update(attributes)


def parts_of(error: BaseException) -> _Parts:
    """Return what ``rebuilt`` is to be called with."""
    fields = {}
    for name, descriptor in _descriptors(type(error)).items():
        with contextlib.suppress(AttributeError):  # nothing was put there
            value = descriptor.__get__(error)
            if value is not None:
                fields[name] = value
    return type(error), _args.__get__(error), dict(vars(error)), fields


class _Pickler(cloudpickle_internals.FilePickler):
    """Takes exceptions apart, those inside of others, too, wherever that is needed."""

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is to be made again; NotImplemented is pickle's own way."""
        if issubclass(type(obj), BaseException) and not _comes_back(obj):
            kind, args, attributes, fields = parts_of(obj)
            # they may hold the exception itself, which is known once it is made
            return rebuilt, (kind, args, {}, fields), attributes, None, None, _give
        return super().reducer_override(obj)


def _descriptors(kind: type) -> dict[str, Any]:
    """Return what reads and writes slots, and what built-in classes hold in C, by name."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        for name, held in vars(one).items():
            plain = not (name.startswith("__") and name.endswith("__")) and name != "args"
            if plain and held is not _NOT_TAKEN and isinstance(held, _FIELDS):
                found.setdefault(name, held)
    return found


def _comes_back(error: BaseException) -> bool:
    """Whether a plain pickle brings it back; its own code may say what there is to be brought."""
    try:  # whose code decides what it raises here
        again = pickle.loads(cloudpickle_internals.dumps(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
    if type(again) is not type(error):
        return False
    ways = [getattr(type(error), name, None) for name in _OWN_WAYS]
    if any(isinstance(one, types.FunctionType) for one in ways):
        return True  # it is told how
    try:
        same = [cloudpickle_internals.dumps(parts_of(one)) for one in (again, error)]
    except KeyboardInterrupt:
        raise
    except BaseException:  # a part has no pickle, and was left out
        return True
    return same[0] == same[1]
