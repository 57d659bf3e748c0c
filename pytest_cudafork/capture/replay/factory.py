"""The protocol of ``create_forward_fn``: how it is called, and what it may return.

It is vLLM's ``CreateForwardFn`` of 0.23 to 0.25 (``(desc, warmup)``, forward and state) and the
form of 0.26 and later, which rebuilds what the forward needs for each pass and may return the
forward alone.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_cudafork.capture.replay.stimulus import POSITIONAL, parameters_of
from pytest_cudafork.capture.state.carried import closure_of
from pytest_cudafork.capture.state.compare import short
from pytest_cudafork.capture.state.state_tree import fields
from pytest_cudafork.capture.state.written import refuse_lazy
from pytest_cudafork.errors import GraphUsageError

MODES = ("FULL", "PIECEWISE")
_PROTOCOL = (
    "create_forward_fn(desc, warmup) returns (forward_fn, state), or forward_fn alone where it is "
    "called anew for each pass"
)


class Pass(NamedTuple):
    """One forward with what it works on."""

    forward: Callable[..., Any]
    state: Any
    own_state: bool  # the factory returned a state; else it is what the forward carries
    modes: type[enum.Enum] | None = None  # the enumeration that mode= belongs to

    def call(self, mode: str, desc: Any) -> Callable[[], Any]:
        """Return the call of the forward, with the graph mode if it takes an argument."""
        return functools.partial(
            self.forward, *_mode_argument(self.forward, mode, desc, self.modes)
        )

    def run(self, mode: str, desc: Any) -> Any:
        """Run the forward; a generator or coroutine that it returns is refused."""
        result = self.call(mode, desc)()
        refuse_lazy(result, "forward_fn")
        return result


class Factory:
    """Calls ``create_forward_fn`` as a graph manager does."""

    def __init__(self, create: Any, desc: Any, modes: type[enum.Enum] | None = None) -> None:
        """Look at how it wants to be called.

        Raises:
            GraphUsageError: it cannot be called with a descriptor.

        """
        if not callable(create):
            raise GraphUsageError(
                f"create_forward_fn is {short(create)}, which cannot be called: {_PROTOCOL}"
            )
        self.desc, self._modes = desc, modes
        self.create = create
        self._passes = _how_to_pass_warmup(create)

    @property
    def rebuilds(self) -> bool:
        """Whether the factory is not told which pass it is for."""
        return self._passes == ""

    def build(self, *, warmup: bool, desc: Any = None) -> Pass:
        """Call the factory for one pass.

        Raises:
            GraphUsageError: it returns something else than the protocol says.

        """
        desc = self.desc if desc is None else desc
        if self._passes == "keyword":
            made = self.create(desc, warmup=warmup)
        elif self._passes == "position":
            made = self.create(desc, warmup)
        else:
            made = self.create(desc)
        return _read(made)._replace(modes=self._modes)


def _how_to_pass_warmup(create: Any) -> str:
    """Return "keyword", "position" or "" for not at all."""
    parameters = parameters_of(create)
    if parameters is None:
        return "keyword"
    names = {one.name: one for one in parameters}
    own = names.get("warmup")
    if own is not None:
        return "position" if own.kind is own.POSITIONAL_ONLY else "keyword"
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return "keyword"
    positional = [one for one in parameters if one.kind in POSITIONAL]
    needed = [one for one in positional if one.default is one.empty]
    if len(needed) > 2:
        raise GraphUsageError(
            f"create_forward_fn needs {len(needed)} arguments "
            f"({', '.join(one.name for one in needed)}): {_PROTOCOL}"
        )
    starred = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not positional and not starred:
        raise GraphUsageError(f"create_forward_fn takes no descriptor: {_PROTOCOL}")
    return "position" if len(needed) == 2 or (starred and not needed) else ""


def _read(made: Any) -> Pass:
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return Pass(made[0], made[1], True)
    if callable(made):
        return Pass(made, types.SimpleNamespace(**closure_of(made)), False)
    hint = ""
    if made is None:
        hint = " Does it lack a return?"
    elif isinstance(made, tuple):
        hint = (
            " The first of the two must be callable."
            if len(made) == 2
            else f" These are {len(made)} values, and there are two: put the rest in the state."
        )
    elif isinstance(made, list):
        hint = " Return a tuple, not a list."
    elif inspect.isgenerator(made):
        hint = " It is a generator: it has a yield."
    raise GraphUsageError(f"create_forward_fn returned {short(made)}: {_PROTOCOL}.{hint}")


def check_mode(mode: str, desc: Any) -> None:
    """Refuse a descriptor that is for another mode.

    Raises:
        GraphUsageError: a field of it says so.

    """
    for name, value in fields_of(desc).items():
        if not isinstance(value, enum.Enum) or not hasattr(type(value), "NONE"):
            continue
        if value.name in MODES and value.name != mode:
            raise GraphUsageError(
                f"desc.{name} is {value.name}, and mode is {mode!r}: give mode={value.name!r}, or "
                "another descriptor"
            )


def fields_of(desc: Any) -> dict[str, Any]:
    """Return the fields of a descriptor by name: its attributes, and those of a named tuple."""
    named = {name: getattr(desc, name, None) for name in getattr(desc, "_fields", ())}
    return {**named, **dict(fields(desc))}


def _mode_argument(
    forward: Callable[..., Any], mode: str, desc: Any, modes: type[enum.Enum] | None
) -> tuple[Any, ...]:
    """Return the arguments of the forward: none, or the mode in its own words."""
    parameters = parameters_of(forward) or []
    takes = [one for one in parameters if one.kind in (*POSITIONAL, one.VAR_POSITIONAL)]
    needed = [one for one in takes if one.default is one.empty and one.kind in POSITIONAL]
    if len(needed) > 1:
        raise GraphUsageError(
            f"forward_fn needs {len(needed)} arguments ({', '.join(one.name for one in needed)}): "
            "it is called with the graph mode, or with none"
        )
    if not needed and not (takes and _is_mode(takes[0])):
        return ()
    kind = _mode_type(forward, takes[0], desc, modes)
    return (getattr(kind, mode) if kind is not None else mode,)


def _is_mode(parameter: inspect.Parameter) -> bool:
    return "mode" in parameter.name


def _function_of(forward: Any) -> Any:
    """Find what carries the annotations. Anything else would be printed, which reads tensors."""
    while isinstance(forward, functools.partial):
        forward = forward.func
    return forward if inspect.isroutine(forward) else type(forward).__call__


def _mode_type(
    forward: Any, parameter: inspect.Parameter, desc: Any, modes: type[enum.Enum] | None
) -> type[enum.Enum] | None:
    """Find the enumeration of graph modes: by annotation, else by a field of the descriptor."""
    candidates: list[Any] = []
    try:
        candidates.append(typing.get_type_hints(_function_of(forward)).get(parameter.name))
    except Exception:  # an annotation that cannot be evaluated here says nothing
        candidates.append(parameter.annotation)
    candidates += [modes, *map(type, fields_of(desc).values())]
    for one in candidates:
        if isinstance(one, type) and issubclass(one, enum.Enum) and hasattr(one, "NONE"):
            return one
    return None
