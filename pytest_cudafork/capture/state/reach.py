"""Owns which tensors a function can reach beside its inputs, and which of them have moved.

It does not know what the function does with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pytest_cudafork.capture.interface.backend import MemoryUse
from pytest_cudafork.capture.state.state_tree import TooManyObjectsError, closure_of, walk
from pytest_cudafork.capture.state.tensors import devices_of, place_of, storage_of, tensors_in
from pytest_cudafork.errors import GraphUsageError


def reachable_tensors(
    fn: Any, but: Iterable[torch.Tensor] = (), note: Callable[[str], object] | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors that a callable carries, without those that share memory with ``but``.

    Below what holds too many objects none are looked for; ``note`` is called with words on that.
    """
    known = {storage_of(tensor) for tensor in but}
    found: dict[str, torch.Tensor] = {}
    for name, value in closure_of(fn).items():
        try:
            tensors = tensors_in(value, name)
        except TooManyObjectsError as error:
            if note is not None:
                note(f"tensors below {name} were not looked for: {error}")
            continue
        for path, tensor in tensors.items():
            if storage_of(tensor) not in known:
                found.setdefault(path, tensor)
    return found


def reachable_generators(fn: Any) -> list[torch.Generator]:
    """Return the generators of random numbers that a callable carries."""
    found: list[torch.Generator] = []
    for name, value in closure_of(fn).items():
        with contextlib.suppress(TooManyObjectsError):
            found += [
                one.value for one in walk(value, name) if isinstance(one.value, torch.Generator)
            ]
    return found


def moved(
    before: Mapping[str, int], now: Mapping[str, torch.Tensor], uses: Iterable[MemoryUse] | None
) -> list[tuple[str, int, int]]:
    """Return path, old and new address of tensors that lie elsewhere now.

    With ``uses``, only where the graph reads the old memory.
    """
    read = None if uses is None else {use.pointer for use in uses if use.reads and not use.owned}
    found = []
    for path, old in before.items():
        tensor = now.get(path)
        new = 0 if tensor is None else storage_of(tensor)
        if old and new and new != old and (read is None or old in read):
            found.append((path, old, new))
    return found


def storages(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return where tensors lie, by path."""
    return {path: storage_of(tensor) for path, tensor in tensors.items()}


def check_devices(tensors: Mapping[str, torch.Tensor], device: str, what: str) -> None:
    """Refuse tensors that lie on two devices, or on another than the backend's.

    Raises:
        GraphUsageError: they do; the message names one of each.

    """
    found = devices_of(tensors)
    if len(found) > 1:
        words = " and ".join(f"{path} on {where}" for where, path in found.items())
        raise GraphUsageError(
            f"{what} lie on {len(found)} devices: {words}. A graph belongs to one device: put them "
            f"on the device of the graph_backend fixture ({device!r} here)"
        )
    for where, path in found.items():
        if where.type != torch.device(device).type:
            raise GraphUsageError(
                f"{path} lies on {where}, and the graphs of this backend are on {device!r}: make "
                "the tensors on the device of the graph_backend fixture, or choose the backend "
                "with backend= or --cuda-fork-graphs"
            )
    for path, tensor in tensors.items():
        if place_of(tensor) is None:
            raise GraphUsageError(
                f"{path} is a {type(tensor).__name__} ({tensor.layout}) without plain memory: a "
                "static input is a strided tensor"
            )
