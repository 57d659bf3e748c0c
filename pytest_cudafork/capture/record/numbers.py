"""Numbers of the host among the arguments of operators, by line: a graph takes them by value.

Kept are those of calls that are alike otherwise, with tensors and results of the same shapes: a
slice of another length is no number that was frozen by mistake, a slice that begins elsewhere is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

_MOST_LINES = 4096
_MOST_CALLS = 256
_MOST_TAKEN = 1024
VIEWS = frozenset(("slice", "select", "narrow", "as_strided"))
"""Operators without work whose numbers say which part of a tensor they mean."""

RESHAPED = frozenset(("view", "_unsafe_view", "reshape", "_reshape_alias", "expand"))
"""Operators whose numbers are the sizes of a result, which follow from those of other tensors."""

NUMBERS = frozenset((int, float, complex))
LISTS = frozenset((list, tuple))

Numbers = tuple[Any, ...]
K = TypeVar("K")
V = TypeVar("V")


class Call(NamedTuple):
    """What calls have in common that are alike but for their numbers."""

    where: str
    name: str
    shapes: tuple[Any, ...]


class LineNumbers:
    """The numbers of the latest calls of each line, outside of captures and taken by graphs."""

    def __init__(self) -> None:
        self._captured: dict[Call, dict[Numbers, None]] = {}
        self._outside: dict[Call, deque[tuple[int, Numbers]]] = {}

    def called(self, call: Call, numbers: Numbers, at: int) -> None:
        """Note a call outside of captures, at an event."""
        found = self._outside.get(call)
        if found is None:
            found = deque(maxlen=_MOST_CALLS)
            _put_last(self._outside, call, found, _MOST_LINES)
        found.append((at, numbers))

    def captured(self, calls: dict[Call, list[Numbers]]) -> None:
        """Note the numbers that a graph has taken, by call; beyond many, the latest are kept."""
        for call, numbers in calls.items():
            taken = self._captured.pop(call, {})
            for each in numbers:
                _put_last(taken, each, None, _MOST_TAKEN)
            _put_last(self._captured, call, taken, _MOST_LINES)

    def forget_runs(self) -> None:
        """Forget the calls outside of captures; what graphs have taken stays known."""
        self._outside.clear()

    def differing(self, inside: dict[Call, list[Numbers]]) -> list[tuple[Call, Numbers, Numbers]]:
        """Return calls of a capture whose numbers were others in the run just before it.

        Each with its numbers in the graph, and those of the run. Numbers that another graph has
        taken belong to a run beside that graph.
        """
        found = []
        for call, taken in inside.items():
            latest = taken[-_MOST_CALLS:]  # of a run with more calls, these are known
            before = [numbers for _, numbers in self._outside.get(call, ())][-len(latest) :]
            if len(before) == len(latest):
                others = self._captured.get(call, {})
                pairs = zip(latest, before, strict=True)
                found += [
                    (call, one, other)
                    for one, other in pairs
                    if one != other and other not in others
                ][:1]
        return found

    def later(self, call: Call, at: int) -> Numbers | None:
        """Return the numbers of a later call outside that no graph has taken; None: there is none.

        Numbers that another graph has taken belong to that graph's warm-up.
        """
        known = self._captured.get(call, {})
        since = (numbers for when, numbers in self._outside.get(call, ()) if when > at)
        return next((numbers for numbers in since if numbers not in known), None)


def _put_last(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Put a value at the end; the oldest one goes where there are more than ``most``."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


def has_numbers(args: Iterable[Any]) -> bool:
    """Whether numbers are among the arguments of an operator that works: a choice of the caller."""
    classes = set(map(type, args))
    if not NUMBERS.isdisjoint(classes):
        return True
    return not LISTS.isdisjoint(classes) and any(
        each.__class__ in LISTS and not NUMBERS.isdisjoint(map(type, each)) for each in args
    )


def numbers_in(args: Iterable[Any], result: Any) -> tuple[Numbers, tuple[Any, ...]]:
    """Return the numbers among arguments, and the shapes of tensors and of the result.

    All NaN are one and the same, so that calls with it are equal.
    """
    numbers: list[Any] = []
    shapes: list[Any] = []
    for each in args:
        kind = each.__class__
        if kind in NUMBERS:
            numbers.append(each if each == each else math.nan)
        elif kind in LISTS:
            numbers += [one for one in each if one.__class__ in NUMBERS]
        elif isinstance(each, Tensor):
            shapes.append(_shape(each))
    shapes.append(_shape(result) if isinstance(result, Tensor) else None)
    return tuple(numbers), tuple(shapes)


def _shape(tensor: Tensor) -> Any:
    return None if tensor.is_nested or torch.nn.parameter.is_lazy(tensor) else tensor.shape
