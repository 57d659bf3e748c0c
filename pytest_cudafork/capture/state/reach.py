"""Which tensors and generators a function can reach beside its inputs, and which tensors moved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import GraphBackend, MemoryUse
from pytest_cudafork.capture.state.carried import closure_of
from pytest_cudafork.capture.state.state_tree import Kind, TooManyObjectsError, walk
from pytest_cudafork.capture.state.tensors import devices_of, distinct_tensors, place_of, storage_of
from pytest_cudafork.errors import GraphUsageError


class Reachable(NamedTuple):
    """What a callable carries."""

    tensors: dict[str, torch.Tensor]  # by path, one for each place in memory
    generators: list[torch.Generator]


def reachable(
    fn: Any, but: Iterable[torch.Tensor] = (), note: Callable[[str], object] | None = None
) -> Reachable:
    """Return what a callable carries, without tensors that share memory with ``but``.

    Below what holds too many objects nothing is looked for; ``note`` is called with words on that.
    """
    known = {storage_of(tensor) for tensor in but}
    found = Reachable({}, [])
    for name, value in closure_of(fn).items():
        try:
            nodes = list(walk(value, name, plain=False))
        except TooManyObjectsError as error:
            if note is not None:
                note(f"tensors below {name} were not looked for: {error}")
            continue
        for path, tensor in distinct_tensors(nodes).items():
            if storage_of(tensor) not in known:
                found.tensors.setdefault(path, tensor)
        found.generators.extend(
            node.value for node in nodes if isinstance(node.value, torch.Generator)
        )
    return found


def weights_of(fn: Any) -> list[torch.Tensor]:
    """Return the parameters and buffers of modules that a callable carries."""
    found = []
    for name, value in closure_of(fn).items():
        with contextlib.suppress(TooManyObjectsError):
            for node in walk(value, name, plain=False):
                if node.kind is not Kind.TENSOR:
                    continue
                is_weight = isinstance(node.value, torch.nn.Parameter)
                if is_weight or isinstance(node.parent, torch.nn.Module):
                    found.append(node.value)
    return found


def moved(
    before: Mapping[str, int], now: Mapping[str, int], uses: Iterable[MemoryUse] | None
) -> list[tuple[str, int, int]]:
    """Return path, old and new address of tensors that lie elsewhere now.

    With ``uses``, only where the graph reads the old memory.
    """
    read = None if uses is None else {use.pointer for use in uses if use.reads and not use.owned}
    found = []
    for path, old in before.items():
        new = now.get(path, 0)
        if old and new and new != old and (read is None or old in read):
            found.append((path, old, new))
    return found


def storages(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return where tensors lie, by path."""
    return {path: storage_of(tensor) for path, tensor in tensors.items()}


def check_devices(tensors: Mapping[str, torch.Tensor], backend: GraphBackend, what: str) -> None:
    """Refuse tensors that lie on two devices, or on another than the backend's.

    Raises:
        GraphUsageError: they do; the message names one of each.

    """
    found, device = devices_of(tensors, backend.device_of), backend.device
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
                f"{path} is a {type(tensor).__name__} ({tensor.layout}, {tensor.dtype}) without "
                "plain memory: a static input is a strided tensor, neither nested nor quantized"
            )
