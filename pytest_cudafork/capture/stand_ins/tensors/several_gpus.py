"""What ``torch.nn.DataParallel`` copies between GPUs: pieces of a batch, parameters and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN
from pytest_cudafork.compat.torch_graphs.functions import BETWEEN_GPUS, COPY_STREAMS
from pytest_cudafork.observe.base.undo import UndoStack


def put_in_place(undo: UndoStack) -> None:
    """Let such copies be made as those of single tensors, until it is undone."""
    for name, function in _FUNCTIONS.items():
        undo.set(BETWEEN_GPUS, name, function)
    undo.set(*COPY_STREAMS, None)  # torch keeps them for ever


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_on(tensor, each) for each in devices]


def _broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    return [[_on(each, device) for each in tensors] for device in devices]


def _scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Any, dim: int = 0, streams: Any = None
) -> list[Tensor]:
    if sizes is None:
        pieces = tensor.chunk(len(devices), dim)
    else:
        pieces = tensor.split(list(sizes), dim)
    return [_on(each, device) for each, device in zip(pieces, devices, strict=False)]


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
    place = torch.device("cpu") if destination == -1 else torch.device("cuda", destination or 0)
    return torch.cat([each.to(place) for each in tensors], dim)


def _on(tensor: Tensor, device: int) -> Tensor:
    """Return a tensor on a GPU: a view of one that lies there, as torch does not copy that."""
    if KNOWN.index_of(tensor) == device:
        return tensor.view_as(tensor)
    return tensor.to(torch.device("cuda", device))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_broadcast": _broadcast,
    "_broadcast_coalesced": _broadcast_coalesced,
    "_gather": _gather,
    "_scatter": _scatter,
}
