"""What is done to inputs and outputs before a replay: poison, other values, ``vary``."""

from __future__ import annotations

import contextlib
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.state.tensors import alias, has_memory, place_of, raw
from pytest_cudafork.capture.state.written import refuse_lazy
from pytest_cudafork.errors import GraphUsageError


class Stimulus(NamedTuple):
    """A change before a replay; ``apply`` may return how many rows are live after it.

    As text it is what stands in "after vary[0] (shrink)".
    """

    label: str  # "vary[0]"
    apply: Callable[[], Any]
    kind: str = "vary"  # "same", "floats", "vary", "other"
    restore: bool = True  # put the inputs back to their first contents before it
    given: Any = None  # the user's callable, which is told by its name and line

    def __str__(self) -> str:
        return self.label if self.given is None else name_of(self.given, self.label)


def name_of(fn: Any, fallback: str) -> str:
    """Return how to call a callable in a message: its name and line, or a fallback."""
    name = getattr(fn, "__name__", "")
    code = getattr(fn, "__code__", None)
    if name == "<lambda>" and code is not None:
        return f"{fallback} ({shown(f'{code.co_filename}:{code.co_firstlineno}')})"
    return f"{fallback} ({name})" if name else fallback


def rows_of(result: Any, name: object) -> int | None:
    """Read what a ``vary`` returned: nothing, or the number of live rows.

    What a change in place returns is ignored: ``lambda: t.fill_(3)`` returns a tensor.

    Raises:
        GraphUsageError: it returned another value, or a number below 0.

    """
    refuse_lazy(result, name)
    if isinstance(result, bool | str | bytes | float | complex):
        raise GraphUsageError(
            f"{name} returned {result!r}: return the number of live rows as an int, or nothing"
        )
    if not isinstance(result, numbers.Integral):
        return None
    if result < 0:
        raise GraphUsageError(f"{name} returned {result}: the number of live rows is not below 0")
    return int(result)


def check_rows(rows: int, expected: dict[str, Any], has_effects: bool, name: object) -> None:
    """Refuse a number of live rows that no output has, or with which nothing is compared."""
    sizes = [len(one) for one in expected.values() if isinstance(one, torch.Tensor) and one.dim()]
    if sizes and rows > max(sizes):
        raise GraphUsageError(
            f"{name} returned {rows}: the number of live rows, and the outputs have "
            f"{max(sizes)}; return nothing if all are live"
        )
    if rows == 0 and sizes and not has_effects:
        raise GraphUsageError(
            f"{name} returned 0: with no live row nothing is compared; return nothing "
            "where all rows are live"
        )


def check_callables(values: Sequence[Any], name: str) -> None:
    """Refuse what is not a sequence of callables.

    Raises:
        GraphUsageError: it is none.

    """
    if callable(values) or not isinstance(values, Sequence):
        raise GraphUsageError(
            f"{name} takes a list of callables, not {values!r}: write [{name}_fn]"
        )
    for index, value in enumerate(values):
        if not callable(value):
            raise GraphUsageError(f"{name}[{index}] is {value!r}, which cannot be called")


def takes_argument(fn: Any) -> bool:
    """Whether a callable has a parameter without a default, as one that wants the state."""
    parameters = parameters_of(fn) or []
    return any(one.default is one.empty and one.kind in POSITIONAL for one in parameters)


POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
"""The kinds of parameters that take one argument by position."""


def parameters_of(fn: Any) -> list[inspect.Parameter] | None:
    """Return the parameters of a callable; None: they are not known, as of some in C."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return None


def other_floats(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Give float tensors other values, of the same range: each element moves by one.

    Whole numbers stay: they are lengths and indexes, of which not every value is allowed. Returns
    whether anything could be changed.
    """
    changed = False
    seen = set()
    for tensor in tensors.values():
        if not has_memory(tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        place = place_of(tensor)
        if not tensor.numel() or (place is not None and place.storage in seen):
            continue
        seen.add(place.storage if place is not None else 0)
        target = alias(tensor)
        old = target.clone()
        if target.element_size() == 1:  # float8 cannot be computed with everywhere
            target.view(torch.uint8).copy_(old.view(torch.uint8).reshape(-1).roll(1).view_as(old))
        else:
            target.copy_(old.reshape(-1).roll(1).view_as(old) if old.numel() > 1 else old * 0.5)
        if torch.equal(raw(old), raw(target.contiguous())):  # all elements are equal
            with contextlib.suppress(NotImplementedError):  # packed types can only be stored
                target.copy_(old.float() * 0.5 if target.element_size() == 1 else old * 0.75)
        changed = changed or not torch.equal(raw(old), raw(target.contiguous().clone()))
    return changed


def other_float_inputs(inputs: Callable[[], Mapping[str, torch.Tensor]]) -> Stimulus:
    """Return the stimulus that gives float inputs other values."""

    def apply() -> None:
        other_floats(inputs())

    return Stimulus("other float inputs", apply, "floats")


class Poison:
    """Poison in output tensors: what is still there after a replay was not written by it."""

    def __init__(self, outputs: Mapping[str, Any]) -> None:
        """Overwrite the tensors among the outputs."""
        self._poison: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for path, tensor in outputs.items():
            if not isinstance(tensor, torch.Tensor) or not has_memory(tensor):
                continue
            if not tensor.numel():
                continue
            target = alias(tensor)
            _fill(target)
            self._poison[path] = (tensor, target.clone())

    def left(self, outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return by path where the poison is still there; of outputs that lie where it was put."""
        found = {}
        for path, (tensor, poison) in self._poison.items():
            there = outputs.get(path, tensor)
            if not isinstance(there, torch.Tensor) or place_of(there) != place_of(tensor):
                continue
            now = alias(tensor)
            if now.element_size() == 1:  # float8 cannot be computed with everywhere
                same = now.view(torch.uint8) == poison.view(torch.uint8)
            elif now.is_floating_point() or now.is_complex():
                same = _bits(now) == _bits(poison)  # a NaN that was computed has other bits
                same = same.all(-1) if now.is_complex() else same
            else:
                same = now == poison
            found[path] = same
        return found


_MARKED_NAN = {
    torch.float16: 0x7E5A,
    torch.bfloat16: 0x7FDA,
    torch.float32: 0x7FC5A5A5,
    torch.float64: 0x7FF8A5A5A5A5A5A5,
}
"""Quiet NaNs with a mark in them: the one that arithmetic makes has none."""
_WIDTHS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of floats as whole numbers, on the same memory."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_WIDTHS[plain.element_size()])


def _fill(target: torch.Tensor) -> None:
    if target.dtype == torch.bool:
        target.logical_not_()
    elif target.is_complex():
        _fill(torch.view_as_real(target))
    elif target.is_floating_point():
        if target.element_size() == 1:
            target.view(torch.uint8).fill_(0x7F)
        else:
            _bits(target).fill_(_MARKED_NAN[target.dtype])
    else:
        target.fill_(torch.iinfo(target.dtype).max // 2 + 1)
