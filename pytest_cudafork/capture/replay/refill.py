"""What a refill of the static inputs leaves of an earlier batch: found, and given other values.

A program that fills its inputs before each replay leaves padding as it was. Eager code is given
zeros there, the replay what another batch may have left: results must not tell the two apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.operators.higher_order import OperatorWatch
from pytest_cudafork.capture.operators.traits import traits_of
from pytest_cudafork.capture.state.tensors import alias, has_memory, storage_of

_STALE_FLOAT = 777.0
_BYTE, _OTHER_BYTE, _BOOL = 0xA5, 0x5A, 2  # no bool holds 2


class _Part(NamedTuple):
    """One input."""

    path: str
    target: torch.Tensor
    old: torch.Tensor  # its contents before
    marked: torch.Tensor  # what holds the marks: the input, or its bytes
    mark: float
    shadow: torch.Tensor | None  # bytes that bear another mark, where any byte is a usual value


class Refill:
    """Finds out what a refill of the static inputs leaves as it was.

    Each element is marked before the refill; those that bear the mark afterwards were left. A byte
    has no value to spare for a mark: what operators write is written into a shadow, too.

    Args:
        tensors: the static inputs, by path.
        stale: what earlier refills have written, by path; it is brought up to date.

    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], stale: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Mark all elements."""
        self._stale = {} if stale is None else stale
        self._parts: list[_Part] = []
        self._left: list[torch.Tensor] = []
        for path, tensor in tensors.items():
            if has_memory(tensor) and tensor.numel():
                self._parts.append(_marked(path, alias(tensor)))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the refill; afterwards it is known what it left."""
        shadows = {
            storage_of(part.target): part.shadow for part in self._parts if part.shadow is not None
        }
        with OperatorWatch(_Shadows(shadows).see) if shadows else contextlib.nullcontext():
            yield
        for part in self._parts:
            left = part.marked == part.mark
            if part.shadow is not None:
                left &= _over(part.shadow, part.target) == _OTHER_BYTE
            self._left.append(left)

    def leave(self, *, clean: bool) -> None:
        """Put zeros where the refill wrote nothing, or what another batch may have left."""
        for part, left in zip(self._parts, self._left, strict=True):
            if clean:
                _put(part, left, torch.zeros_like(part.old))
            else:
                _put(part, left, self._stale_of(part, left))
                self._stale[part.path] = part.target.clone()

    def _stale_of(self, part: _Part, left: torch.Tensor) -> torch.Tensor:
        old = part.old
        if old.is_floating_point():
            if old.element_size() == 1:  # float8 cannot be computed with everywhere
                return torch.full_like(old.view(torch.uint8), 0x3C).view(old.dtype)
            return torch.full_like(old, _STALE_FLOAT)
        stale = self._stale.get(part.path)
        if stale is None or stale.shape != old.shape:
            stale = old
        if old.is_complex() or bool(left.all()):
            return stale
        return torch.where(stale == 0, _samples(part.target, ~left), stale)


def _put(part: _Part, left: torch.Tensor, values: torch.Tensor) -> None:
    target = part.target
    if target.is_floating_point() and target.element_size() == 1:  # as above
        target, values = target.view(torch.uint8), values.view(torch.uint8)
    target.copy_(torch.where(left, values, target))


def _marked(path: str, target: torch.Tensor) -> _Part:
    old = target.clone()
    if target.element_size() > 1:
        mark = _mark(target.dtype)
        target.fill_(mark)
        return _Part(path, target, old, target, mark, None)
    marked = target.view(torch.uint8)
    if target.dtype is torch.bool:
        marked.fill_(_BOOL)
        return _Part(path, target, old, marked, _BOOL, None)
    marked.fill_(_BYTE)
    size = target.untyped_storage().nbytes()
    shadow = torch.full((size,), _OTHER_BYTE, dtype=torch.uint8, device=target.device)
    return _Part(path, target, old, marked, _BYTE, shadow)


def _mark(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return -4321.0 if torch.finfo(dtype).max > 1e4 else -431.0
    info = torch.iinfo(dtype)
    if info.min == 0:
        return float(info.max // 2 + 4321) if info.bits < 32 else float(2**31 - 4321)
    return float(info.min + 4321) if dtype is not torch.int64 else -4321.0


def _samples(target: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """Return values that the refill has written: at the same place in another row, else anywhere.

    Such values are valid where they were written: another batch may well have left them. 0 where
    none but zeros were written.
    """
    if target.dtype is torch.bool:
        return torch.ones_like(target)
    useful = written & (target > 0)
    if not bool(useful.any()):
        return torch.where(written, target, torch.zeros_like(target)).max().expand_as(target)
    anywhere = target[useful].min().expand_as(target)
    if target.dim() < 2:
        return anywhere
    most = torch.where(useful, target, torch.zeros_like(target)).amax(0, keepdim=True)
    return torch.where(most > 0, most.expand_as(target), anywhere)


class _Shadows:
    """Does what operators do to some memory to its shadow as well."""

    def __init__(self, shadows: Mapping[int, torch.Tensor]) -> None:
        self._shadows = shadows

    def see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Do to the shadows what an operator has done."""
        for written in traits_of(func).written:
            given = args[written.position] if written.position < len(args) else None
            tensor = kwargs.get(written.name) if given is None else given
            if isinstance(tensor, torch.Tensor) and tensor.element_size() == 1:
                self._write(func, written, tensor, args, kwargs)

    def _write(self, func: Any, written: Any, tensor: Any, args: Any, kwargs: Any) -> None:
        shadow = self._shadows.get(storage_of(tensor))
        if shadow is None:
            return
        window = _over(shadow, tensor)
        if not written.reads:  # all of it is written
            window.fill_(_BYTE)
            return
        if written.position < len(args):
            place = written.position
            args = (*args[:place], window.view(tensor.dtype), *args[place + 1 :])
        else:
            kwargs = {**kwargs, written.name: window.view(tensor.dtype)}
        func(*args, **kwargs)


def _over(shadow: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a shadow that lies where a tensor of bytes does."""
    return shadow.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
