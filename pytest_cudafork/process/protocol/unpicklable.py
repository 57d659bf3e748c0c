"""Where in a value the part is that has no pickle: pickle's errors name its class alone."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pytest_cudafork.compat import cloudpickle_internals
from pytest_cudafork.compat.unpatched import traceback

_DEEPEST = 20
_MOST = 1000  # parts of one thing that are tried: each is pickled for it


def reason(error: BaseException, value: object) -> str:
    """Return why a value does not pickle: the error, and where in the value the cause is.

    Args:
        error: What pickling the value has raised.
        value: What was to be pickled.

    Returns:
        As "TypeError: cannot pickle '_thread.lock' object (found at ['locks'][0].inner)".

    """
    path, passed = "", [value]
    for _ in range(_DEEPEST):
        inner = _broken(passed)
        if inner is None:
            break
        step, part, error = inner
        passed.append(part)
        path += step
    said = "".join(traceback.format_exception_only(error)).strip()
    return f"{said} (found at {path.strip()})" if path else said


def _broken(passed: Sequence[object]) -> tuple[str, object, BaseException] | None:
    """Return the first part of the last of these that does not pickle, with its error."""
    try:
        parts = list(islice(_parts(passed[-1]), _MOST))
    except BaseException:  # a container's own code: what is within it is not known
        return None
    for step, part in parts:
        if any(part is one for one in passed):
            continue
        try:
            cloudpickle_internals.dumps(part)
        except BaseException as error:  # pickling runs the part's own code
            return step, part, error
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a value is pickled with, and how it is reached from the value."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((" an element", part) for part in value)
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif _is_pickled_by_its_attributes(value):
        yield from ((f".{name}", part) for name, part in vars(value).items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what goes along with a function that is pickled by its code."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" variable {name!r}", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" global {name!r}", function.__globals__[name]
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__


def _is_pickled_by_its_attributes(value: Any) -> bool:
    kind, plain = type(value), object
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    own = any(getattr(kind, name, None) is not getattr(plain, name, None) for name in names)
    return not own and isinstance(getattr(value, "__dict__", None), dict)
